"""Requests and responses as both edges see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from headwater.engine import Stream
from headwater.protocol.streams import headers

Headers: TypeAlias = tuple[tuple[str, str], ...]
Buffer: TypeAlias = bytes | memoryview


class Request(msgspec.Struct, gc=False):
    method: str
    path: str  # below the mount point, percent-encoded as it arrived
    query: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    version: str = "1.1"
    scheme: str = "http"
    mount: str = ""  # the path below which the app is mounted


class Feed(msgspec.Struct, frozen=True):
    """A response that stays open: server-sent events of a stream from a position."""

    stream: Stream
    position: int
    until: int | None
    cursor: int
    first: bytes  # what is there already, from the position on


class Response(msgspec.Struct, gc=False):
    status: int
    headers: Headers = ()
    body: tuple[Buffer, ...] = ()
    feed: Feed | None = None
    close: bool = False  # the connection is not fit for another request


# On every response: browsers may read it from anywhere, and must take the content type at its word.
COMMON_HEADERS: Headers = (
    ("access-control-allow-origin", "*"),
    ("access-control-expose-headers", ", ".join((*headers.RESPONSE_HEADERS, "etag", "location", "retry-after"))),
    ("cross-origin-resource-policy", "cross-origin"),
    ("x-content-type-options", "nosniff"),
)
PREFLIGHT_HEADERS: Headers = (
    ("access-control-allow-methods", "GET, HEAD, POST, PUT, DELETE, OPTIONS"),
    (
        "access-control-allow-headers",
        ", ".join((*headers.REQUEST_HEADERS, "authorization", "cache-control", "content-type", "if-none-match")),
    ),
    ("access-control-max-age", "86400"),
)

Respond: TypeAlias = Callable[[Response], None]
