"""Server-sent events: data frames in three encodings, control frames and keep-alive comments, and a parser for them.

Parsers remove one leading space of a field value, so a space is added only if the text itself begins with one.

The id of an event is the offset after it. A browser sends the last id as `Last-Event-ID` when it reconnects. The id
comes after the data, because some parsers expect the data right after the `event` line.
"""

from __future__ import annotations

import binascii
import re

from headwater import limits
from headwater.joining import Joined
from headwater.log.content import ContentKind

KEEP_ALIVE = b": keep-alive\n\n"

_LINE_END = re.compile(rb"\r\n|\r|\n")


class DataEvent:
    """A data event of whole records, encoded in pieces, so that a large event does not block the loop.

    Pieces do not depend on each other, so that several readers can be at different pieces.
    """

    __slots__ = ("_data", "_end", "_id", "_kind", "pieces")

    def __init__(self, kind: ContentKind, data: bytes, next_offset: str) -> None:
        self._kind = kind
        self._id = next_offset
        self._data = data
        self._end = len(data) - 1 if kind is ContentKind.JSON else len(data)  # without the last comma
        self.pieces = max(1, -(-self._end // limits.SSE_PIECE_BYTES))

    def piece(self, number: int) -> bytes:
        """The bytes of piece `number`, counted from 0. All pieces in order make up the event."""
        start = number * limits.SSE_PIECE_BYTES
        end = min(start + limits.SSE_PIECE_BYTES, self._end)
        json = self._kind is ContentKind.JSON
        if self._kind is ContentKind.BINARY:
            encoded = binascii.b2a_base64(self._data[start:end], newline=False)
        else:
            encoded = field_lines(self._data, start, end, first=not json and not start)
        if not start:
            encoded = (b"event: data\ndata:[" if json else b"event: data\ndata:") + encoded
        if end == self._end:
            encoded += f"{']' if json else ''}\nid:{self._id}\n\n".encode()
        return encoded


def data_frame(kind: ContentKind, data: bytes, next_offset: str) -> bytes:
    """A data event as a whole."""
    event = DataEvent(kind, data, next_offset)
    return b"".join([event.piece(number) for number in range(event.pieces)])


def field_lines(data: bytes, start: int, end: int, *, first: bool) -> bytes:
    """Part of a text, with the field name before each line except its first. `first`: the text begins here."""
    part, before = data[start:end], data[start - 1 : start]
    if before == b"\r" and part.startswith(b"\n"):
        part = part[1:]  # the LF of a CRLF
    if b"\r" in part:
        part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in part:
        part = part.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")
    if part.startswith(b" ") and (first or before in (b"\r", b"\n")):
        return b" " + part
    return part


def control_frame(next_offset: str, *, cursor: int, up_to_date: bool, closed: bool, with_id: bool = False) -> bytes:
    """A control event. It needs an id if no data event precedes it."""
    fields = f'"streamNextOffset":"{next_offset}"'
    if closed:
        fields += ',"streamClosed":true,"upToDate":true'
    else:
        fields += f',"streamCursor":"{cursor}"'
        if up_to_date:
            fields += ',"upToDate":true'
    last = f"\nid:{next_offset}" if with_id else ""
    return f"event: control\ndata:{{{fields}}}{last}\n\n".encode()


def deletion_frame(next_offset: str) -> bytes:
    """The last control event of a deleted stream. The offset is where the reader is."""
    return f'event: control\ndata:{{"streamNextOffset":"{next_offset}","streamDeleted":true}}\n\n'.encode()


class EventReader:
    """Parses bytes to events. An incomplete event is never returned."""

    def __init__(self) -> None:
        self._line_start = Joined()  # of the incomplete line
        self._after_cr = False
        self._name = b""
        self._data = Joined()  # each line with its end
        self.pending_bytes = 0  # approximate size of the incomplete event

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """The events that this chunk completes, as pairs of name and data."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the LF of a CRLF
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        events = []
        for line in lines:
            if self._line_start.size:
                self._line_start.add(line)
                line = self._line_start.take()
            event = self._line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._line_start.add(rest)
        self.pending_bytes = len(rest) if events else self.pending_bytes + len(chunk)
        return events

    def _line(self, line: bytes) -> tuple[bytes, bytes] | None:
        if not line:
            event = (self._name or b"message", self._data.take()[:-1]) if self._data.size else None
            self._name = b""
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.add(value + b"\n")
        elif field == b"event":
            self._name = value
        return None
