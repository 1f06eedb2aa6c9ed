"""JSON streams: each message is stored as the received bytes, followed by a comma.

A read is a slice of the stream in brackets. Parsing the slice gives the messages.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import msgspec

from headwater import limits
from headwater.errors import EmptyBodyError, InvalidJsonError, TooManyMessagesError
from headwater.log.json_boundaries import boundaries

_value = msgspec.json.Decoder(msgspec.Raw)
_array = msgspec.json.Decoder(list[msgspec.Raw])
_WHITESPACE = b" \t\n\r"

# What msgspec raises for a text that is not JSON of the type. Invalid UTF-8 can raise another error than DecodeError.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def is_light(body: bytes) -> bool:
    """Whether a body is small enough to be framed on the event loop."""
    return len(body) <= limits.JSON_INLINE_BYTES and body.count(b",") <= limits.JSON_COMMAS_AT_ONCE


def stored(body: bytes, messages_max: int, *, may_be_empty: bool = False) -> bytes:
    """The bytes to store for a body: the elements of an array, or a single value."""
    return framed(body, messages_max, may_be_empty=may_be_empty)[0]


def framed(body: bytes, messages_max: int, *, may_be_empty: bool = False) -> tuple[bytes, int]:
    """The same, and how many messages these are."""
    if not body.isascii():
        _check_utf8(body)
    text = body.strip(_WHITESPACE)
    try:
        if text[:1] != b"[":
            _value.decode(text)
            return text + b",", 1
        if text[-1:] != b"]" or len(text) == 1:
            raise InvalidJsonError("the array has no end")
        count, kept = 0, []
        for messages in _split(text[1:-1]):
            count += len(messages)
            if count > messages_max:
                raise TooManyMessagesError(f"an append may have at most {messages_max} messages")
            kept.append(b",".join(messages))
    except UNREADABLE as error:
        raise InvalidJsonError(reason_of(error)) from None
    if count:
        kept.append(b"")
        return b",".join(kept), count
    if may_be_empty:
        return b"", 0
    raise EmptyBodyError("an empty JSON array has no message to append")


def _split(data: bytes) -> Iterator[list[msgspec.Raw]]:
    """The messages of an array (without its brackets), in groups of bounded size."""
    start = 0
    if len(data) > limits.JSON_INLINE_BYTES or _has_many_commas(data, start):  # counting takes a third of the time
        while (group := _objects(data, start)) is not None:
            messages, start = group
            yield messages
    if _has_many_commas(data, start):
        for end in boundaries(data, start):
            messages = split_array(b"[" + data[start : end - 1] + b"]")
            if not messages:
                raise InvalidJsonError("an element of the array is missing")
            yield messages
            start = end
    messages = split_array(b"[" + data[start:] + b"]")
    if start and not messages:
        raise InvalidJsonError("the array ends with a comma")
    yield messages


def _has_many_commas(data: bytes, start: int) -> bool:
    """Whether there are more than `JSON_COMMAS_AT_ONCE` after a position. A long text is not counted to its end."""
    left = limits.JSON_COMMAS_AT_ONCE
    for position in range(start, len(data), limits.JSON_STEP_BYTES):
        left -= data.count(b",", position, position + limits.JSON_STEP_BYTES)
        if left < 0:
            return True
    return False


def groups(data: bytes) -> Iterator[bytes]:
    """Stored messages in groups of bounded size, each as the text of an array without its brackets."""
    start = 0
    while len(data) - start > limits.JSON_STEP_BYTES:
        group = _objects(data, start)
        end = next(boundaries(data, start), len(data)) if group is None else group[1]
        yield data[start : end - 1]
        start = end
    if start < len(data):
        yield data[start:-1]


def _objects(data: bytes, start: int) -> tuple[list[msgspec.Raw], int] | None:
    """The next messages and the position after them, if the array can be split between two objects.

    This guesses that a `},{` is a boundary, and the parser confirms it: a part that is valid as an array consists of
    whole messages. It is four times as fast as `boundaries`.
    """
    end = start + limits.JSON_STEP_BYTES
    if end >= len(data):
        return None
    for _ in range(limits.JSON_GUESSES_MAX):
        end = data.rfind(b"},{", start, end)
        if end < 0:
            return None
        try:
            return split_array(b"[" + data[start : end + 1] + b"]"), end + 2
        except msgspec.DecodeError:
            end += 2  # try the previous one
    return None


def split_array(text: bytes | bytearray | str) -> list[msgspec.Raw]:
    """The elements of a JSON array, as they were written.

    The array is validated, except for UTF-8 inside strings. Raises msgspec.DecodeError if the text is not a JSON array,
    or if it is nested too deeply for the interpreter.
    """
    try:
        return _array.decode(text)
    except RecursionError as error:
        raise msgspec.DecodeError(reason_of(error)) from None


def _check_utf8(body: bytes) -> None:
    """Check UTF-8, because the parser accepts invalid UTF-8 inside strings."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    try:
        for position in range(0, len(body), limits.JSON_STEP_BYTES):
            decoder.decode(body[position : position + limits.JSON_STEP_BYTES])
        position = len(body)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"body is not UTF-8 near byte {position + error.start}") from None


def reason_of(error: Exception) -> str:
    """Why a text cannot be decoded, for an error message. Python's own words for deep nesting are about its stack."""
    return "JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)


def count_messages(data: bytes) -> int:
    """How many messages stored bytes have."""
    return sum(map(len, _split(data[:-1]))) if data else 0


def message_end(data: bytes, number: int) -> int | None:
    """The end of the message with a number (from 1) in stored bytes, after its comma; None if there are fewer."""
    position = 0
    for messages in _split(data[:-1]) if data else ():
        if number <= len(messages):
            return position + sum([len(memoryview(message)) + 1 for message in messages[:number]])
        number -= len(messages)
        position += sum([len(memoryview(message)) + 1 for message in messages])
    return None
