"""Content negotiation: chooses the encoding that a client accepts, and compresses bodies."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol
from weakref import WeakSet

import brotli
import zstandard

from headwater.errors import UnsupportedEncodingError
from headwater.limits import CACHED_TEXT_LENGTH_MAX, ENCODERS_MAX
from headwater.protocol import encodings
from headwater.server.http import Buffer

_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    encodings.ZSTD: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    encodings.BROTLI: lambda data: bytes(brotli.compress(data, quality=4)),
    encodings.GZIP: lambda data: gzip.compress(data, compresslevel=5, mtime=0),
    encodings.DEFLATE: lambda data: zlib.compress(data, level=5),
}


def choose_encoding(accept_encoding: str) -> str | None:
    """The encoding to use for an Accept-Encoding header; None for identity."""
    known = len(accept_encoding) <= CACHED_TEXT_LENGTH_MAX
    return _choose_known(accept_encoding) if known else _choose(accept_encoding)


def _choose(accept_encoding: str) -> str | None:
    qualities: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        qualities[name.strip()] = _quality(parameters)
    anything = qualities.get("*", 0.0)
    identity = qualities.get(encodings.IDENTITY, 0.0)
    best, best_quality = None, max(identity, 0.0)
    for name in encodings.ENCODINGS:
        quality = qualities.get(name, anything)
        if quality > 0 and quality >= best_quality and (best is None or quality > best_quality):
            best, best_quality = name, quality
    return best


_choose_known = lru_cache(maxsize=256)(_choose)


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def check_request_encoding(content_encoding: str) -> None:
    """Refuse an encoded body: bodies are stored as they arrive, without their encoding."""
    if content_encoding.strip().lower() not in ("", encodings.IDENTITY):
        raise UnsupportedEncodingError(
            f"a body must not be encoded, this one is {content_encoding[:80]!r}; send it without Content-Encoding"
        )


async def encode_body(body: tuple[Buffer, ...], encoding: str, inline_bytes: int) -> bytes:
    """Encode a body, in a thread if it is larger than what may be encoded at once."""
    if sum(map(len, body)) <= inline_bytes:
        return encode(body, encoding)
    return await asyncio.get_running_loop().run_in_executor(None, encode, body, encoding)


class Encoder(Protocol):
    """Encodes a body that comes in pieces."""

    def encode(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class _Zlib:
    """gzip and deflate, which differ in their header and trailer."""

    def __init__(self, wbits: int) -> None:
        self._encoder = zlib.compressobj(5, zlib.DEFLATED, wbits)
        self.encode = self._encoder.compress
        self.finish = self._encoder.flush


class _Brotli:
    def __init__(self) -> None:
        self._encoder = brotli.Compressor(quality=4)

    def encode(self, piece: bytes) -> bytes:
        return bytes(self._encoder.process(piece))

    def finish(self) -> bytes:
        return bytes(self._encoder.finish())


class _Zstd:
    def __init__(self) -> None:
        self._encoder = zstandard.ZstdCompressor(level=3).compressobj()

    def encode(self, piece: bytes) -> bytes:
        return self._encoder.compress(piece)

    def finish(self) -> bytes:
        return self._encoder.flush()


class Encoders:
    """The encoders of responses in pieces. Each takes some MiB until its client has read the response or disconnects,
    so their number is limited."""

    def __init__(self, at_once_max: int = ENCODERS_MAX) -> None:
        self._at_once_max = at_once_max
        self._used: WeakSet[Encoder] = WeakSet()

    def open(self, encoding: str) -> Encoder | None:
        """A new encoder; None if there are too many, and the response is sent uncompressed."""
        if len(self._used) >= self._at_once_max:
            return None
        opened = _encoder(encoding)
        self._used.add(opened)
        return opened


def _encoder(encoding: str) -> Encoder:
    if encoding == encodings.ZSTD:
        return _Zstd()
    if encoding == encodings.BROTLI:
        return _Brotli()
    return _Zlib(zlib.MAX_WBITS + 16 if encoding == encodings.GZIP else zlib.MAX_WBITS)


def encode(body: tuple[Buffer, ...], encoding: str) -> bytes:
    return _ENCODERS[encoding](b"".join(body))
