"""Parsing of rows from a body that arrives in pieces, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

from headwater import limits
from headwater.errors import InvalidRowError
from headwater.protocol.tables.rows import DELETE, Row, parse_row


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
            raise _error(self._lines + 1, f"the response ends within a row that begins with {start!r}; read it again")

    def _rows(self, lines: list[bytes]) -> Iterator[Row]:
        for line in lines:
            self._lines += 1
            if line or not self._lenient:
                yield self._row(line)
        if len(self._held) > self._row_bytes_max:
            raise _error(self._lines + 1, self._too_long())

    def _row(self, line: bytes) -> Row:
        if len(line) > self._row_bytes_max:
            raise _error(self._lines, self._too_long())
        try:
            return parse_row(line.decode())
        except UnicodeDecodeError as error:
            raise _error(self._lines, f"byte {error.start} of the row is not UTF-8") from None
        except InvalidRowError as error:
            if self._lenient and _lacks_record(line):
                return self._row(line + b"\t")
            raise _error(self._lines, error.detail) from None

    def _too_long(self) -> str:
        return f"the row is longer than {self._row_bytes_max} bytes"


def _lacks_record(line: bytes) -> bool:
    return line.count(b"\t") == 3 and line.split(b"\t")[2] == DELETE.encode()


def _error(line: int, detail: str) -> InvalidRowError:
    return InvalidRowError(f"line {line}: {detail}", line=line)
