"""The body of an append to a mirror: whole rows, numbered by the server of the table that is mirrored."""

from __future__ import annotations

from headwater.errors import InvalidChangeError, InvalidRowError, TooManyMessagesError
from headwater.protocol.tables.row_reader import RowReader


def check_rows(body: bytes, after: int, rows_max: int) -> int:
    """The last SeqNo of a body, `after` if it is empty. An error names the first line that is not the next row.

    What is a row here is a row for a follower as well.
    """
    count = body.count(b"\n")
    if count > rows_max:
        raise TooManyMessagesError(f"an append may have {rows_max} rows, this one has {count}")
    if body and not body.endswith(b"\n"):
        raise _error(count + 1, "the row does not end with a newline, so it may be cut off; send it whole")
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
