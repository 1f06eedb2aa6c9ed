"""Rows: `SeqNo TAB Timestamp TAB Action TAB PrimaryKey TAB Record LF`.

Formatting a parsed row gives the same bytes, so that a mirror serves what it received. Therefore a SeqNo with leading
zeros is refused, and the record is everything after the fourth tab, including further tabs. The body of an append to a
mirror is whole rows, with the SeqNos of the mirrored table.

Timestamps are RFC 3339 in UTC. This server always writes milliseconds with three digits, so that its timestamps have
one length and sort as text. Timestamps of other servers may have other forms. They are informational, and a mirror
keeps them as text; `parse_timestamp` converts them.

In a server-sent event the SeqNo is the id, and the row without its newline the data. A browser sends the id of the last
event as `Last-Event-ID` when it reconnects, and gets the rows after it. Events have no name, so an EventSource passes
them to `onmessage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

import msgspec

from headwater import limits
from headwater.errors import InvalidChangeError, InvalidRowError, TooManyMessagesError
from headwater.log.row_framing import format_rows, format_timestamp, last_seqno_of, seqno_of
from headwater.protocol.tables.escaping import Escape, escape

__all__ = [
    "ADD",
    "DELETE",
    "Action",
    "Row",
    "RowReader",
    "check_rows",
    "escaped",
    "event_frames",
    "format_row",
    "format_rows",
    "format_timestamp",
    "is_seqno",
    "last_seqno_of",
    "parse_row",
    "parse_timestamp",
    "seqno_of",
]

Action = Literal["+", "-"]

ADD: Action = "+"  # adds or replaces the record of a key
DELETE: Action = "-"

_ACTIONS: dict[str, Action] = {ADD: ADD, DELETE: DELETE}
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|[+-]00:00)"
)


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


class RowReader:
    """Parses bytes to rows. Rows and errors do not depend on how the bytes are split into pieces.

    At most one incomplete line is buffered, and it is refused as soon as it is too long. A reader cannot be used after
    an error.

    A `lenient` reader is for the responses of other servers: it also accepts what the reference parser of STP accepts,
    which are empty lines, and a delete without the tab before its empty record. What is stored as it was received must
    be read without it.
    """

    def __init__(self, row_bytes_max: int = limits.ROW_BYTES_MAX, *, lenient: bool = False) -> None:
        self._row_bytes_max = row_bytes_max
        self._lenient = lenient
        self._held = bytearray()  # the incomplete line
        self._lines = 0  # number of complete lines

    def feed(self, piece: bytes) -> Iterator[Row]:
        """The rows that this piece completes. Rows before an invalid line are returned before the error is raised."""
        *lines, rest = piece.split(b"\n")
        if lines and self._held:
            lines[0] = bytes(self._held) + lines[0]
            self._held.clear()
        self._held += rest
        return self._rows(lines)

    @property
    def is_within_row(self) -> bool:
        """Whether the bytes so far end within a line."""
        return bool(self._held)

    def finish(self) -> None:
        """Call at the end of the body. Raises an error if it ends within a line."""
        if self._held:
            start = bytes(self._held[:80]).decode(errors="replace")
            raise _row_error(
                self._lines + 1, f"the response ends within a row that begins with {start!r}; read it again"
            )

    def _rows(self, lines: list[bytes]) -> Iterator[Row]:
        for line in lines:
            self._lines += 1
            if line or not self._lenient:
                yield self._row(line)
        if len(self._held) > self._row_bytes_max:
            raise _row_error(self._lines + 1, self._too_long())

    def _row(self, line: bytes) -> Row:
        if len(line) > self._row_bytes_max:
            raise _row_error(self._lines, self._too_long())
        try:
            return parse_row(line.decode())
        except UnicodeDecodeError as error:
            raise _row_error(self._lines, f"byte {error.start} of the row is not UTF-8") from None
        except InvalidRowError as error:
            if self._lenient and _lacks_record(line):
                return self._row(line + b"\t")
            raise _row_error(self._lines, error.detail) from None

    def _too_long(self) -> str:
        return f"the row is longer than {self._row_bytes_max} bytes"


def _lacks_record(line: bytes) -> bool:
    return line.count(b"\t") == 3 and line.split(b"\t")[2] == DELETE.encode()


def _row_error(line: int, detail: str) -> InvalidRowError:
    return InvalidRowError(f"line {line}: {detail}", line=line)


def check_rows(body: bytes, after: int, rows_max: int) -> int:
    """Check the body of an append to a mirror. Returns its last SeqNo, `after` if it is empty.

    The error for an invalid body has the line number. The syntax of a row is the same as for followers.
    """
    count = body.count(b"\n")
    if count > rows_max:
        raise TooManyMessagesError(f"an append may have at most {rows_max} rows, this one has {count}")
    if body and not body.endswith(b"\n"):
        raise _change_error(count + 1, "the row does not end with a newline, so it may be incomplete; send it again")
    last = after
    try:
        for number, row in enumerate(RowReader().feed(body), 1):
            if row.seqno <= last:
                raise _change_error(
                    number, f"row {row.seqno} does not come after row {last}; send rows in order, each once"
                )
            last = row.seqno
    except InvalidRowError as error:
        raise InvalidChangeError(error.detail, line=error.line) from None
    return last


def _change_error(line: int, fault: str) -> InvalidChangeError:
    return InvalidChangeError(f"line {line}: {fault}", line=line)


def parse_timestamp(text: str) -> int:
    """Milliseconds since 1970, rounded down. A leap second counts as the second after it."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise InvalidRowError(f"a timestamp is RFC 3339 in UTC, as 2026-01-08T00:00:00Z, got {text[:80]!r}")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC)
    except ValueError:
        raise InvalidRowError(f"the timestamp {text[:80]!r} is not a valid time") from None
    return (int(moment.timestamp()) + leap) * 1000 + int((match[7] or "")[:3].ljust(3, "0"))


def event_frames(rows: bytes) -> bytes:
    """The events for stored rows, each with its newline.

    The record of a mirrored row may contain a carriage return, which would end a line of the event, so that the text
    after it could look like a field. It becomes a line end in the data, as in the events of streams.
    """
    if not rows:
        return b""
    lines = rows[:-1].split(b"\n")
    if b"\r" in rows:
        lines = [line.replace(b"\r", b"\ndata: ") for line in lines]
    parts = [b"\n\n"] * (5 * len(lines))
    parts[0::5] = [b"id: "] * len(lines)
    parts[1::5] = [line[: line.index(b"\t")] for line in lines]
    parts[2::5] = [b"\ndata: "] * len(lines)
    parts[3::5] = lines
    return b"".join(parts)
