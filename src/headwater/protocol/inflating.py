"""Decompression in bounded pieces, for answers of servers that are not trusted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from headwater import limits
from headwater.errors import ProtocolError
from headwater.protocol.encodings import GZIP, IDENTITY

_GZIP_WINDOW = zlib.MAX_WBITS | 16


class Inflater:
    """The bytes of a body that is compressed with gzip or not at all, at most `piece_bytes` of them at a time.

    A few compressed bytes can stand for a thousand times as many. Whoever reads piece by piece can stop at any of them.
    """

    def __init__(self, encoding: str | None, piece_bytes: int = limits.INFLATE_PIECE_BYTES) -> None:
        encoding = (encoding or IDENTITY).strip().lower()
        if encoding not in (IDENTITY, GZIP):
            raise ProtocolError(f"the answer is encoded as {encoding[:80]!r}, and {GZIP} or nothing was asked for")
        self._member = zlib.decompressobj(_GZIP_WINDOW) if encoding == GZIP else None
        self._piece_bytes = piece_bytes
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._member is None:
            yield data
            return
        self._fed = self._fed or bool(data)
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW)  # a body may have several members
            try:
                piece = self._member.decompress(data, self._piece_bytes)
            except zlib.error as error:
                raise ProtocolError(f"the answer is not valid gzip: {error}") from None
            if piece:
                yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def finish(self) -> None:
        """To be called at the end of the body: raises an error if it ends too soon. Another answer may be whole."""
        if self._member is not None and self._fed and not self._member.eof:
            error = ProtocolError("the compressed answer ends too soon")
            error.retryable = True
            raise error
