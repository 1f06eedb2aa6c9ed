"""Stream paths: where streams are on a server, what a URL may name, decoded once and compared as text."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from headwater import limits
from headwater.errors import InvalidPathError

STREAM_ROOT = "/v1/stream/"  # what precedes the path of a stream in its URL
RESERVED = "__ds"  # the first segment of the server's own routes below the root

_PLAIN = re.compile(r"(?:[A-Za-z0-9_~!$&'()*+,;=:@-][A-Za-z0-9_~!$&'()*+,;=:@.-]*(?:/(?!$)|$))+")


def parse_path(raw: str) -> str:
    """The stream path in the part of a URL after the stream root, percent-encoded as it arrived."""
    if len(raw) <= limits.PATH_SEGMENT_BYTES_MAX and _PLAIN.fullmatch(raw):
        return raw
    lowered = raw.lower()
    if "%2f" in lowered or "%5c" in lowered or "\\" in raw:
        raise InvalidPathError("an encoded slash or a backslash cannot be part of a segment")
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
    """A decoded path that is to become a URL. `.` and `..` are refused: they would be resolved on the way."""
    for segment in path.split("/"):
        _check_segment(segment)
    if "\\" in path:
        raise InvalidPathError("a backslash cannot be part of a path")
    return path


def _check_segment(segment: str) -> None:
    if not segment:
        raise InvalidPathError("a path has no empty segments; remove the slash that is too many")
    if segment in (".", ".."):
        raise InvalidPathError(f"a path segment cannot be {segment!r}")
    if len(segment.encode()) > limits.PATH_SEGMENT_BYTES_MAX:
        raise InvalidPathError(f"a path segment is longer than {limits.PATH_SEGMENT_BYTES_MAX} bytes")
    if any(character < " " or character == "\x7f" for character in segment):
        raise InvalidPathError("a path segment holds a control character")


def quote_path(path: str) -> str:
    return quote(path, safe="/~!$&'()*+,;=:@")
