"""Decompression in pieces of bounded size, for responses of servers that are not trusted.

A few compressed bytes can expand to a million times their size. The caller can stop after any piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli
import zstandard

from headwater import limits
from headwater.errors import ProtocolError
from headwater.protocol.encodings import BROTLI, GZIP, IDENTITY, ZSTD

ACCEPTED = f"{ZSTD}, {BROTLI}, {GZIP}"

_GZIP_WINDOW = zlib.MAX_WBITS | 16
_ZSTD_STEP_BYTES = 512  # they expand to at most 16 MiB: a block of 4 bytes expands to 128 KiB


class Inflater:
    """Decompresses a body in pieces of about `piece_bytes` (16 MiB for zstd)."""

    def __init__(self, encoding: str | None, piece_bytes: int = limits.INFLATE_PIECE_BYTES) -> None:
        encoding = (encoding or IDENTITY).strip().lower()
        self._codec: _Codec | None = None
        if encoding == GZIP:
            self._codec = _Gzip(piece_bytes)
        elif encoding == BROTLI:
            self._codec = _Brotli(piece_bytes)
        elif encoding == ZSTD:
            self._codec = _Zstd()
        elif encoding != IDENTITY:
            raise ProtocolError(f"the response is encoded as {encoding[:80]!r}; only {ACCEPTED} is accepted")
        self._encoding = encoding
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._codec is None:
            yield data
            return
        self._fed = self._fed or bool(data)
        try:
            yield from self._codec.feed(data)
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise ProtocolError(f"the response is not valid {self._encoding}: {error}") from None

    def finish(self) -> None:
        """Call at the end of the body. Raises an error, which is retryable, if the body is incomplete."""
        if self._codec is not None and self._fed and not self._codec.is_whole:
            error = ProtocolError("the compressed response is incomplete")
            error.retryable = True
            raise error


class _Codec(Protocol):
    @property
    def is_whole(self) -> bool: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    def __init__(self, piece_bytes: int) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._piece_bytes = piece_bytes

    @property
    def is_whole(self) -> bool:
        return self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW)  # a body may have several members
            piece = self._member.decompress(data, self._piece_bytes)
            if piece:
                yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


class _Brotli:
    def __init__(self, piece_bytes: int) -> None:
        self._codec = brotli.Decompressor()
        self._piece_bytes = piece_bytes

    @property
    def is_whole(self) -> bool:
        return bool(self._codec.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        codec, bytes_max = self._codec, self._piece_bytes
        piece = codec.process(data, output_buffer_limit=bytes_max)
        while piece or not codec.can_accept_more_data():
            if piece:
                yield piece
            if codec.is_finished():
                return
            piece = codec.process(b"", output_buffer_limit=bytes_max)


class _Zstd:
    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=limits.INFLATE_WINDOW_BYTES_MAX)
        self._frame = self._zstd.decompressobj()

    @property
    def is_whole(self) -> bool:
        return self._frame.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        while view:
            if self._frame.eof:
                self._frame = self._zstd.decompressobj()  # a body may have several frames
            step, view = view[:_ZSTD_STEP_BYTES], view[_ZSTD_STEP_BYTES:]
            if piece := self._frame.decompress(step):
                yield piece
            if self._frame.eof and self._frame.unused_data:
                view = memoryview(self._frame.unused_data + bytes(view))
