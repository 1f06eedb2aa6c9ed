"""JSON mode: a stream of messages, kept as the bytes received with a comma after each.

So a read is a slice of the stream in brackets, and the messages of a slice are found again by parsing it.
"""

from __future__ import annotations

import msgspec

from headwater.errors import EmptyBodyError, InvalidJsonError

_value = msgspec.json.Decoder(msgspec.Raw)
_array = msgspec.json.Decoder(list[msgspec.Raw])
_WHITESPACE = b" \t\n\r"


def stored(body: bytes, *, may_be_empty: bool = False) -> bytes:
    """The bytes to keep for a body: the elements of an array, or the one value it is."""
    if not body.isascii():
        _check_utf8(body)
    text = body.strip(_WHITESPACE)
    try:
        if text[:1] != b"[":
            _value.decode(text)
            return text + b","
        messages = split_array(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJsonError(_reason(error)) from None
    if messages:
        return b",".join(messages) + b","
    if may_be_empty:
        return b""
    raise EmptyBodyError("an empty JSON array holds no message to append")


def split_array(text: bytes | bytearray | str) -> list[msgspec.Raw]:
    """The elements of a JSON array, as they were written.

    The array is validated, apart from the UTF-8 inside strings: check that separately where it matters. Raises
    msgspec.DecodeError for text that is not a JSON array, and RecursionError for one that is nested too deeply.
    """
    return _array.decode(text)


def _check_utf8(body: bytes) -> None:
    """The parser lets invalid UTF-8 pass inside strings; the protocol does not."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"body is not UTF-8 at byte {error.start}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    return str(error)


def message_ends(data: bytes) -> list[int]:
    """For stored bytes, where each message ends, its comma included."""
    ends, position = [], 0
    for message in split_array(b"[" + data[:-1] + b"]"):
        position += len(memoryview(message)) + 1
        ends.append(position)
    return ends
