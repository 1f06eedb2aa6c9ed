"""Content encodings by their HTTP names."""

from __future__ import annotations

IDENTITY = "identity"
ZSTD = "zstd"
BROTLI = "br"
GZIP = "gzip"
DEFLATE = "deflate"

# The server's order of preference at equal quality: by speed for the ratio on JSON, then by what clients support.
ENCODINGS = (ZSTD, BROTLI, GZIP, DEFLATE)
