"""Processes many JSON texts at once, as far as possible without a Python object for each.

The byte 0 separates joined texts, because it does not occur in JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.columns.cutting import ends_of
from headwater.errors import MessageError
from headwater.log.json_framing import split_array

_ASCII_MAX = 127


def text_column(text: bytes | bytearray) -> pa.Array:
    """The elements of a JSON array as a column of text."""
    messages = split_array(text)
    check_text(text)
    return texts(messages)


def checked_text_column(text: bytes | bytearray) -> pa.Array:
    """The same for an array that is known to be valid, because the server has checked its messages."""
    ends = ends_of(text)
    if ends is None:
        return text_column(text)
    check_text(text)
    bounds = np.empty(len(ends) + 1, np.int32)
    bounds[0], bounds[1:-1], bounds[-1] = 1, ends[:-1] + 1, ends[-1]
    pieces = pa.StringArray.from_buffers(len(ends), pa.py_buffer(bounds), pa.py_buffer(text))
    return pc.ascii_rtrim(pieces, ",")  # the one after each message but the last, all of which end with a bracket


def texts(messages: Sequence[msgspec.Raw | None]) -> pa.Array:
    """JSON texts as a column."""
    if not messages:
        return pa.array([], pa.string())
    has_nulls = type(None) in set(map(type, messages))
    joined = b"\0".join([b"" if text is None else text for text in messages] if has_nulls else messages)  # type: ignore[arg-type]
    whole = pa.StringArray.from_buffers(1, _span(len(joined)), pa.py_buffer(joined))
    column = pc.split_pattern(whole, "\0").values
    return pc.if_else(pc.equal(pc.binary_length(column), 0), None, column) if has_nulls else column


def sizes(messages: Sequence[msgspec.Raw] | Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The size of each text in bytes, including a separator."""
    joined = b"\0".join([*messages, b""])
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == 0)
    return np.diff(ends, prepend=-1)


def join(messages: pa.Array, between: bytes) -> bytes:
    """All messages as one text."""
    whole = pa.Array.from_buffers(pa.list_(messages.type), 1, [None, _span(len(messages))], children=[messages])
    joined: bytes = pc.binary_join(whole, pa.scalar(between, pa.binary()))[0].as_py()
    return joined


def _span(length: int) -> pa.Buffer:
    """The offsets of an array with a single element. `pa.array` would import pandas for them, which takes 0.3 s."""
    return pa.py_buffer(np.array([0, length], np.int32))


def check_text(text: bytes | bytearray) -> None:
    """Check UTF-8, because the parser does not check strings, and they may come from any server."""
    if text and np.frombuffer(text, np.uint8).max() > _ASCII_MAX:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise MessageError(f"a message is not UTF-8: {text[max(0, error.start - 40) : error.end]!r}") from None
