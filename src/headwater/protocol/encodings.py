"""Content encodings by their HTTP names."""

from __future__ import annotations

IDENTITY = "identity"
ZSTD = "zstd"
BROTLI = "br"
GZIP = "gzip"
DEFLATE = "deflate"

# The server's order of preference if a client gives equal weights: the best speed and ratio on JSON first.
ENCODINGS = (ZSTD, BROTLI, GZIP, DEFLATE)
