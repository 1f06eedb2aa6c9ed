"""The console: a page of plain ES modules and a style sheet, which the server serves as they are.

`app.js` is where to begin. Nothing here is built, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

import msgspec

_PAGE = "index.html"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


class ConsoleFile(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str


class ConsoleFiles(msgspec.Struct, frozen=True):
    page: str  # with names in place of what differs for each response
    files: dict[str, ConsoleFile]  # what the page loads, by name
    version: str  # another one for other files

    def page_for(self, nonce: str, token: str) -> bytes:
        """The page of one response. `token` says whether the server wants one."""
        text = self.page.replace("VERSION", self.version).replace("NONCE", nonce).replace("TOKEN", token)
        return text.encode()


@functools.cache
def load_files() -> ConsoleFiles:
    """Read the files of the console, once."""
    page, files, digest = "", {}, hashlib.sha256()
    for entry in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if entry.name == _PAGE:
            page = entry.read_text("utf-8")
        elif kind is not None:
            files[entry.name] = ConsoleFile(entry.read_bytes(), kind)
            digest.update(files[entry.name].body)
    return ConsoleFiles(page, files, digest.hexdigest()[:16])
