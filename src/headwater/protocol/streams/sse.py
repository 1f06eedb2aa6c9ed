"""Server-sent events: data frames in three encodings, control frames, keep-alive comments; and how they are read.

A field value loses one leading space at the reader, so none is added unless the text itself begins with one.
"""

from __future__ import annotations

import binascii
import re

from headwater.log.content import ContentKind

KEEP_ALIVE = b": keep-alive\n\n"

_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_frame(kind: ContentKind, data: bytes) -> bytes:
    """A data event for a whole number of records."""
    if kind is ContentKind.JSON:
        text = b"[" + data[:-1] + b"]"
    elif kind is ContentKind.BINARY:
        return b"event: data\ndata:" + binascii.b2a_base64(data, newline=False) + b"\n\n"
    else:
        text = data
    if b"\n" not in text and b"\r" not in text:
        return b"event: data\n" + _line(text) + b"\n\n"
    lines = b"\n".join(_line(line) for line in _LINE_END.split(text))
    return b"event: data\n" + lines + b"\n\n"


def _line(text: bytes) -> bytes:
    return (b"data: " if text.startswith(b" ") else b"data:") + text


def control_frame(next_offset: str, *, cursor: int, up_to_date: bool, closed: bool) -> bytes:
    fields = f'"streamNextOffset":"{next_offset}"'
    if closed:
        fields += ',"streamClosed":true,"upToDate":true'
    else:
        fields += f',"streamCursor":"{cursor}"'
        if up_to_date:
            fields += ',"upToDate":true'
    return f"event: control\ndata:{{{fields}}}\n\n".encode()


class EventReader:
    """Bytes in, whole events out; what was cut off in the middle is never seen."""

    def __init__(self) -> None:
        self._line_parts: list[bytes] = []
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []
        self.pending_bytes = 0  # about what is held of an event that is not complete

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """The events that are complete now, as name and data."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the other half of a CRLF
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        events = []
        for line in lines:
            event = self._line(b"".join([*self._line_parts, line]) if self._line_parts else line)
            self._line_parts = []
            if event is not None:
                events.append(event)
        if rest:
            self._line_parts.append(rest)
        self.pending_bytes = len(rest) if events else self.pending_bytes + len(chunk)
        return events

    def _line(self, line: bytes) -> tuple[bytes, bytes] | None:
        if not line:
            event = (self._name or b"message", b"\n".join(self._data)) if self._data else None
            self._name, self._data = b"", []
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None
