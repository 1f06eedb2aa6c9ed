"""Server-sent events: data frames in three encodings, control frames, keep-alive comments.

A field value loses one leading space at the reader, so none is added unless the text itself begins with one.
"""

from __future__ import annotations

import binascii
import re

from headwater.types import ContentKind

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
