"""Stream paths: their place in a URL, and how they are decoded and checked."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from headwater import limits
from headwater.errors import InvalidPathError

STREAM_ROOT = "/v1/stream/"  # the URL of a stream is this and its path
CONSOLE = "/console"  # the page to look at a server
RESERVED = "__ds"  # first segment of the server's own routes
STATE_PATH = f"{STREAM_ROOT}{RESERVED}/state"  # the entities of a state stream
LIVE_PATH = f"{STREAM_ROOT}{RESERVED}/live"  # many streams over one connection

_PLAIN = re.compile(r"(?:[A-Za-z0-9_~!$&'()*+,;=:@-][A-Za-z0-9_~!$&'()*+,;=:@.-]*(?:/(?!$)|$))+")


def parse_path(raw: str) -> str:
    """The stream path in the part of a URL after the stream root, which is still percent-encoded."""
    if len(raw) <= limits.PATH_SEGMENT_BYTES_MAX and _PLAIN.fullmatch(raw):
        return raw
    lowered = raw.lower()
    if "%2f" in lowered or "%5c" in lowered or "\\" in raw:
        raise InvalidPathError("a path segment cannot contain an encoded slash or a backslash")
    try:
        path = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidPathError("the path is not UTF-8 after percent-decoding") from None
    if len(path.encode()) > limits.PATH_BYTES_MAX:
        raise InvalidPathError(f"the path is longer than {limits.PATH_BYTES_MAX} bytes")
    for segment in path.split("/"):
        _check_segment(segment)
    return path


def check_path(path: str) -> str:
    """Check a decoded path for use in a URL. `.` and `..` are refused, because HTTP clients resolve them."""
    for segment in path.split("/"):
        _check_segment(segment)
    if "\\" in path:
        raise InvalidPathError("a path cannot contain a backslash")
    return path


def _check_segment(segment: str) -> None:
    if not segment:
        raise InvalidPathError("a path has no empty segments; remove the extra slash")
    if segment in (".", ".."):
        raise InvalidPathError(f"a path segment cannot be {segment!r}")
    if len(segment.encode()) > limits.PATH_SEGMENT_BYTES_MAX:
        raise InvalidPathError(f"a path segment is longer than {limits.PATH_SEGMENT_BYTES_MAX} bytes")
    if any(character < " " or character == "\x7f" for character in segment):
        raise InvalidPathError("a path segment contains a control character")


def quote_path(path: str) -> str:
    return quote(path, safe="/~!$&'()*+,;=:@")
