"""The body of an append to a mirror: whole rows, with the SeqNos of the mirrored table."""

from __future__ import annotations

from headwater.errors import InvalidChangeError, InvalidRowError, TooManyMessagesError
from headwater.protocol.tables.row_reader import RowReader


def check_rows(body: bytes, after: int, rows_max: int) -> int:
    """Return the last SeqNo of a body, `after` if it is empty. The error for an invalid body has the line number.

    The syntax of a row is the same as for followers.
    """
    count = body.count(b"\n")
    if count > rows_max:
        raise TooManyMessagesError(f"an append may have at most {rows_max} rows, this one has {count}")
    if body and not body.endswith(b"\n"):
        raise _error(count + 1, "the row does not end with a newline, so it may be incomplete; send it again")
    last = after
    try:
        for number, row in enumerate(RowReader().feed(body), 1):
            if row.seqno <= last:
                raise _error(number, f"row {row.seqno} does not come after row {last}; send rows in order, each once")
            last = row.seqno
    except InvalidRowError as error:
        raise InvalidChangeError(error.detail, line=error.line) from None
    return last


def _error(line: int, fault: str) -> InvalidChangeError:
    return InvalidChangeError(f"line {line}: {fault}", line=line)
