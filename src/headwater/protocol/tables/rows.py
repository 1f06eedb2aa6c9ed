"""Rows: `SeqNo TAB Timestamp TAB Action TAB PrimaryKey TAB Record LF`, formatted and parsed to the byte.

A row that was parsed is formatted to the same bytes, so a mirror serves what it received. For this reason a SeqNo with
leading zeros is refused, and the record is everything after the fourth tab, further tabs included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headwater import limits
from headwater.errors import InvalidRowError

Action = Literal["+", "-"]

ADD: Action = "+"  # adds or replaces the record of a key
DELETE: Action = "-"

_ACTIONS: dict[str, Action] = {ADD: ADD, DELETE: DELETE}


class Row(msgspec.Struct, frozen=True, gc=False):
    """One change of a table. SeqNos order the rows; the timestamp is informational and kept as text."""

    seqno: int
    timestamp: str
    action: Action
    key: str
    record: str


def format_row(row: Row) -> bytes:
    """The bytes of a row, with its newline. The fields must be those of a valid row: they are not checked here."""
    return f"{row.seqno}\t{row.timestamp}\t{row.action}\t{row.key}\t{row.record}\n".encode()


def format_rows(changes: Sequence[bytes], first_seqno: int, timestamp: str) -> bytes:
    """The bytes of the rows that changes become, their SeqNos counted from `first_seqno`.

    A change is `action TAB key TAB record` as `changes.parse_changes` gives it. All are joined in one step, without an
    object for each row.
    """
    count = len(changes)
    before = b"%d\t" + timestamp.encode() + b"\t"
    parts = [b"\n"] * (3 * count)
    parts[0::3] = [before % seqno for seqno in range(first_seqno, first_seqno + count)]
    parts[1::3] = changes
    return b"".join(parts)


def parse_row(line: str) -> Row:
    """The row in a line without its newline."""
    fields = line.split("\t", 4)
    if len(fields) == 5:
        seqno, timestamp, sign, key, record = fields
        action = _ACTIONS.get(sign)
        if action is not None and key and is_seqno(seqno):
            return Row(int(seqno), timestamp, action, key, record)
    raise InvalidRowError(_fault(fields))


def is_seqno(text: str) -> bool:
    """Whether a text is a SeqNo: a plain decimal integer, not negative, without leading zeros.

    A client resumes with `since_id=SeqNo`, and a negative `since_id` asks for the last rows.
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


def seqno_of(row: bytes) -> int:
    """The SeqNo of the first row in stored bytes, which are known to be rows."""
    return int(row[: row.index(b"\t")])


def last_seqno_of(rows: bytes) -> int:
    """The SeqNo of the last row in stored bytes."""
    start = rows.rfind(b"\n", 0, len(rows) - 1) + 1
    return int(rows[start : rows.index(b"\t", start)])


def split_rows(rows: bytes) -> list[bytes]:
    """The rows in stored bytes, each with its newline."""
    return [line + b"\n" for line in rows[:-1].split(b"\n")] if rows else []
