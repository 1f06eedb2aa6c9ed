"""The console: a page of plain ES modules and a style sheet, which the server serves as they are.

`app.js` is where to begin. Nothing here is built, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import functools
import zlib
from importlib import resources

import msgspec

PAGE = "index.html"
NONCE = b"NONCE"  # in the page, where the nonce of a response goes
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


class ConsoleFile(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    version: int  # another number for other bytes


@functools.cache
def load_files() -> dict[str, ConsoleFile]:
    """The files of the console by name; the page is that without a name. They are read once."""
    files = {}
    for entry in resources.files(__name__).iterdir():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            files["" if entry.name == PAGE else entry.name] = ConsoleFile(body, kind, zlib.crc32(body))
    return files
