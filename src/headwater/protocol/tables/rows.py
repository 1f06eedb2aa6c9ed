"""Rows: `SeqNo TAB Timestamp TAB Action TAB PrimaryKey TAB Record LF`.

Formatting a parsed row gives the same bytes, so that a mirror serves what it received. Therefore a SeqNo with leading
zeros is refused, and the record is everything after the fourth tab, including further tabs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headwater import limits
from headwater.errors import InvalidRowError
from headwater.log.row_framing import format_rows, last_seqno_of, seqno_of
from headwater.protocol.tables.escaping import Escape, escape

__all__ = [
    "ADD",
    "DELETE",
    "Action",
    "Row",
    "escaped",
    "format_row",
    "format_rows",
    "is_seqno",
    "last_seqno_of",
    "parse_row",
    "seqno_of",
    "split_rows",
]

Action = Literal["+", "-"]

ADD: Action = "+"  # adds or replaces the record of a key
DELETE: Action = "-"

_ACTIONS: dict[str, Action] = {ADD: ADD, DELETE: DELETE}


class Row(msgspec.Struct, frozen=True, gc=False):
    """One change of a table. SeqNos define the order; the timestamp is informational and kept as text."""

    seqno: int
    timestamp: str
    action: Action
    key: str
    record: str


def format_row(row: Row) -> bytes:
    """Format a row, with its newline. The fields are not checked."""
    return f"{row.seqno}\t{row.timestamp}\t{row.action}\t{row.key}\t{row.record}\n".encode()


def escaped(row: Row, escaping: Escape) -> Row:
    """The row with its key and record escaped."""
    if escaping is Escape.NONE:
        return row
    return msgspec.structs.replace(row, key=escape(row.key), record=escape(row.record))


def parse_row(line: str) -> Row:
    """Parse a line without its newline."""
    fields = line.split("\t", 4)
    if len(fields) == 5:
        seqno, timestamp, sign, key, record = fields
        action = _ACTIONS.get(sign)
        if action is not None and key and is_seqno(seqno):
            return Row(int(seqno), timestamp, action, key, record)
    raise InvalidRowError(_fault(fields))


def is_seqno(text: str) -> bool:
    """Whether a text is a SeqNo: a plain decimal integer, not negative, without leading zeros.

    A client resumes with it as `since_id`, where a negative number means the last rows.
    """
    return (
        text.isdigit()
        and text.isascii()
        and (text[0] != "0" or text == "0")
        and len(text) <= limits.SEQNO_DIGITS_MAX
        and int(text) <= limits.SEQNO_MAX
    )


def _fault(fields: list[str]) -> str:
    if not is_seqno(fields[0]):
        return f"a row begins with its SeqNo, a decimal integer from 0 to 2^63-1, got {fields[0][:80]!r}"
    if len(fields) < 5:
        return f"row {fields[0]} has {len(fields)} of the 5 fields SeqNo, Timestamp, Action, PrimaryKey and Record"
    if fields[2] not in _ACTIONS:
        return f"the action of row {fields[0]} must be + or -, got {fields[2][:80]!r}"
    return f"the primary key of row {fields[0]} is empty"


def split_rows(rows: bytes) -> list[bytes]:
    """The rows in stored bytes, each with its newline."""
    return [line + b"\n" for line in rows[:-1].split(b"\n")] if rows else []
