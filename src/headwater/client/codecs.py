"""Encoding and decoding of messages, by content type and Python type.

A JSON stream consists of messages, and an item is one decoded message. Any other stream consists of bytes, and an item
is a run of them as it arrived, or the text in it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from headwater import limits
from headwater.errors import ProtocolError
from headwater.joining import Joined
from headwater.log.content import ContentKind, kind_of
from headwater.log.json_boundaries import elements
from headwater.log.json_framing import reason_of, split_array

JSON = "application/json"


# Values to bytes


def encoder_of(content_type: str) -> Callable[[Any], bytes]:
    """Return the function that encodes a value as a message of a stream."""
    kind = kind_of(content_type)
    if kind is ContentKind.JSON:
        return encode_json
    return lambda value: _encode_bytes(value, content_type)


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Bytes must be JSON text and are passed through.

    Raises ValueError for NaN and infinities, and for a value that is nested too deeply.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _checked_json(bytes(value))
    try:
        return _encoded(value)
    except RecursionError:
        raise ValueError("the value is nested too deeply, or contains itself") from None


def _encoded(value: Any) -> bytes:
    if hasattr(value, "__pydantic_serializer__"):
        text = bytes(value.__pydantic_serializer__.to_json(value, by_alias=True))
    else:
        text = _json_encoder.encode(value)
    if b"null" in text:  # both encoders write NaN and infinities as null
        _refuse_non_finite(_builtins(value))
    return text


def _builtins(value: Any) -> Any:
    """The value as dicts, lists and numbers."""
    if hasattr(value, "__pydantic_serializer__"):
        return value.__pydantic_serializer__.to_python(value, by_alias=True)
    return msgspec.to_builtins(value, enc_hook=_encode_foreign)


def _refuse_non_finite(value: Any, place: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        where = f" at {place[1:]}" if place else ""
        raise ValueError(f"JSON has no number {value}{where}; leave it out, or use None or a text")
    if isinstance(value, dict):
        for key, one in value.items():
            _refuse_non_finite(one, f"{place}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for number, one in enumerate(value):
            _refuse_non_finite(one, f"{place}[{number}]")


def _checked_json(text: bytes) -> bytes:
    try:
        if len(split_array(b"[" + text + b"]")) == 1:
            text.decode()
            return text
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise ValueError(f"bytes for a stream of JSON must be one JSON text, got {text[:40]!r}")


def _encode_foreign(value: Any) -> Any:
    if hasattr(value, "__pydantic_serializer__"):
        return value.__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


_json_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


def _encode_bytes(value: Any, content_type: str) -> bytes:
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    else:
        raise TypeError(f"a stream of {content_type} takes bytes or text, not {type(value).__name__}")
    if not data:
        raise ValueError("nothing to append")
    return data


def body_of(content_type: str, messages: Iterable[bytes]) -> bytes:
    """The body that appends encoded messages."""
    if kind_of(content_type) is ContentKind.JSON:
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


# Bytes to values


@runtime_checkable
class ArrayDecoder(Protocol):
    """A type that decodes whole arrays of messages by itself."""

    def decode_array(self, text: bytes, /) -> list[Any]: ...


class Decoder:
    """Decodes the responses of a stream to items."""

    def __init__(self, kind: ContentKind, wanted: Any) -> None:
        self.kind = kind
        self._text = _Text() if kind is not ContentKind.JSON and wanted in (str, Any) else None
        if kind is ContentKind.JSON:
            self._decode = _json_decoder(wanted)
        elif wanted is bytes or (wanted is Any and kind is ContentKind.BINARY):
            self._text = None
        elif self._text is None:
            raise ProtocolError(f"a stream of {kind.name.lower()} gives bytes or str, not {wanted!r}")

    @property
    def held_bytes(self) -> int:
        """The number of bytes at the end that are an incomplete character. They are consumed but not delivered."""
        return len(self._text.held) if self._text is not None else 0

    def answer(self, skip: int) -> JsonAnswer | BytesAnswer:
        return JsonAnswer(self._decode, skip) if self.kind is ContentKind.JSON else BytesAnswer(self._text, skip)


class _Text:
    """Decodes UTF-8 across several responses."""

    def __init__(self) -> None:
        self.held = b""

    def decode(self, data: bytes) -> tuple[str, str | None]:
        """The valid text at the start of the data, and the error in the data after it."""
        data, self.held = self.held + data, b""
        try:
            return data.decode(), None
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                self.held = data[error.start :]
                return data[: error.start].decode(), None
            self.held = data[error.start :]  # not delivered either
            return data[: error.start].decode(), f"not UTF-8: {error.reason}, {data[error.start : error.end]!r}"


def _json_decoder(wanted: Any) -> Callable[[bytes], list[Any]]:
    if isinstance(wanted, ArrayDecoder):
        return wanted.decode_array
    if wanted is bytes:
        return lambda text: [bytes(raw) for raw in split_array(text)]
    if _is_pydantic(wanted):
        return _pydantic_decoder(wanted)
    return msgspec.json.Decoder(list[wanted]).decode


def _is_pydantic(wanted: Any) -> bool:
    return hasattr(wanted, "__pydantic_validator__")


def _pydantic_decoder(wanted: Any) -> Callable[[bytes], list[Any]]:
    from pydantic import TypeAdapter  # pydantic is imported only if a model is given, which needs it anyway

    adapter: TypeAdapter[list[Any]] = TypeAdapter(list[wanted])
    return adapter.validate_json


class BytesAnswer:
    """The bytes of a response, or the text in them."""

    def __init__(self, text: _Text | None, skip: int) -> None:
        self._text = text
        self._skip = skip
        self._held = Joined()
        self.taken = 0  # bytes, the skipped ones included
        self.fed = 0  # and without them
        self.bad: str | None = None

    @property
    def size(self) -> int:
        return self._held.size

    def feed(self, chunk: bytes) -> None:
        self._held.add(chunk)

    def some(self) -> list[Any]:
        """Return and release what has arrived so far."""
        data = self._held.take()
        before = max(0, self._skip - self.taken)
        self.taken += len(data)
        self.fed += max(0, len(data) - before)
        if self._text is None:
            return [data[before:]] if len(data) > before else []
        text, self.bad = self._text.decode(data[before:])
        return [text] if text else []

    rest = some
    event = feed

    def cut(self, surplus: int) -> list[Any]:
        """Return the rest, without this many bytes at its end."""
        data = self._held.take()
        self._held.add(data[: max(0, len(data) - surplus)])
        return self.some()


class JsonAnswer:
    """The JSON array of a response, decoded in parts if it is large.

    A comma separates two messages if and only if the text before it is a valid array once `]` is appended.
    """

    def __init__(self, decode: Callable[[bytes], list[Any]], skip: int) -> None:
        self._decode = decode
        self._skip = skip
        self._held = Joined()
        self.taken = 0  # messages, the skipped ones included
        self.fed = 0
        self.bad: str | None = None  # the error of the message after those
        self._retry_size = 0
        self._in_events = False

    @property
    def size(self) -> int:
        return self._held.size

    def feed(self, chunk: bytes) -> None:
        self._held.add(chunk)

    def some(self) -> list[Any]:
        """Return and release the messages that are complete."""
        if self.size < self._retry_size:
            return []
        text = self._text()
        end = len(text)
        for _ in range(limits.SPLIT_TRIES_MAX):
            end = text.rfind(b",", 0, end)
            if end < 0:
                break
            head = text[:end] + b"]"
            if _is_array(head):
                self._hold(b"[" + text[end + 1 :])
                return self._items(head)
        self._retry_size = 2 * self.size  # a long message: do not search for its end at every chunk
        return []

    def rest(self) -> list[Any]:
        """Return the remaining messages of a complete response."""
        if self._in_events:
            self.feed(b"]")
        text = self._text()
        self._hold(b"")
        return self._items(text) if text else []

    def event(self, data: bytes) -> None:
        """Feed an array that is one of several."""
        array = data.strip()
        if not (array.startswith(b"[") and array.endswith(b"]")):
            raise ProtocolError("expected an array of JSON messages in a data event")
        if inner := array[1:-1].strip():
            self.feed((b"," if self._in_events else b"[") + inner)
            self._in_events = True

    def cut(self, surplus: int) -> list[Any]:
        """Return the remaining messages, without this many at the end."""
        messages = _split(self._text())
        self._hold(b"")
        return self._items(b"[" + b",".join(messages[: max(0, len(messages) - surplus)]) + b"]")

    def _text(self) -> bytes:
        text = self._held.take()
        self._held.add(text)
        return text

    def _hold(self, text: bytes) -> None:
        self._held, self._retry_size = Joined(text), 0

    def _items(self, text: bytes) -> list[Any]:
        before = max(0, self._skip - self.taken)
        if before:
            messages = _split(text)
            self.taken += min(before, len(messages))
            text = b"[" + b",".join(messages[before:]) + b"]"
        try:
            items = self._decode(text)
        except (ValueError, RecursionError):  # msgspec and pydantic raise it for a wrong type and for invalid JSON
            items = self._up_to_invalid(_split(text))
        self.taken += len(items)
        return items

    def _up_to_invalid(self, messages: list[bytes]) -> list[Any]:
        """Decode the messages before the first invalid one, as one array: what it becomes is the decoder's choice."""
        for count, message in enumerate(messages):
            try:
                self._decode(b"[" + message + b"]")
            except (ValueError, RecursionError) as error:
                self.bad = f"{reason_of(error)}: {bytes(message)[:80].decode(errors='replace')}"
                messages = messages[:count]
                break
        return self._decode(b"[" + b",".join(messages) + b"]")


def _split(text: bytes) -> list[bytes]:
    """The messages of an array as raw JSON. Invalid or too deeply nested messages are found when they are decoded."""
    try:
        return split_array(text)  # type: ignore[return-value]  # as good as bytes here
    except msgspec.DecodeError as error:
        array = text.strip()
        if array[:1] == b"[" and array[-1:] == b"]":
            with contextlib.suppress(ValueError):
                return elements(array[1:-1])
        broken = ProtocolError(f"expected an array of JSON messages: {error}")
        broken.retryable = True  # most likely cut off by a lost connection
        raise broken from None


def _is_array(text: bytes) -> bool:
    try:
        split_array(text)
    except msgspec.DecodeError:
        return False
    return True
