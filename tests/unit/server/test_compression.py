"""Encoders of answers that come in pieces."""

from __future__ import annotations

import zlib

from headwater.protocol import encodings
from headwater.server.compression import Encoders


def test_encoders_are_bounded_in_number() -> None:
    encoders = Encoders(2)
    first, second = encoders.open(encodings.GZIP), encoders.open(encodings.BROTLI)
    assert first is not None
    assert second is not None
    assert encoders.open(encodings.ZSTD) is None
    whole = first.encode(b"rows") + first.finish()
    assert zlib.decompress(whole, zlib.MAX_WBITS + 16) == b"rows"
    assert encoders.open(encodings.ZSTD) is None
    del first
    assert encoders.open(encodings.ZSTD) is not None
