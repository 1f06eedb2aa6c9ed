"""Requests and responses, for both edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headwater.errors import BadRequestError, HeadwaterError, TransferEncodingError, UrlTooLongError
from headwater.limits import COMBINED_URL_BYTES_MAX, ROUTES_MAX, Limits
from headwater.protocol.streams.paths import LIVE_PATH
from headwater.server.auth.callers import ANYONE, Caller
from headwater.server.auth.grants import Grant

Headers: TypeAlias = tuple[tuple[str, str], ...]
Buffer: TypeAlias = bytes | memoryview
NO_ROUTE = -1


def waiting(route: int) -> int:
    """The number of a route for its requests that wait for new data."""
    return route if route == NO_ROUTE else route + ROUTES_MAX


class Request(msgspec.Struct, gc=False):
    method: str
    path: str  # below the mount point, percent-encoded as it arrived
    query: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    version: str = "1.1"
    scheme: str = "http"
    mount: str = ""  # the path below which the app is mounted
    authority: str = ""  # the host that the client used, from a proxy; otherwise see the Host header
    peer: str = ""  # the address of the client, from the edge or a trusted proxy
    caller: Caller = ANYONE  # the authenticated caller and its scopes
    began_s: float = 0.0  # when it was complete; 0: it is not timed
    route: int = NO_ROUTE  # the number of its route
    id: str = ""  # the request id, once it is needed
    head_bytes: int = 0  # approximate memory of the head, if the edge counts it
    relayed_for: Grant | None = None  # what its caller may do, if another server has passed it on

    @property
    def identity(self) -> str:
        """A short name of the caller; empty if access is not checked or the route is public."""
        return self.caller.name


class Frame:
    """Bytes of a response that stays open, encoded once for all readers."""

    __slots__ = ("body", "chunk")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.chunk: bytes | None = None  # the same as an HTTP/1.1 chunk, once it was needed

    def make_chunk(self) -> bytes:
        self.chunk = b"%x\r\n%b\r\n" % (len(self.body), self.body)
        return self.chunk


class Sink(Protocol):
    """The destination of the frames of a feed: a connection."""

    @property
    def blocked(self) -> bool:
        """Whether written data waits for the client."""

    def write(self, frame: Frame) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None:
        """End the response so that the client can detect that it is incomplete."""


class Feed(Protocol):
    """A response that stays open, as an edge sees it."""

    def open(self, sink: Sink, now_s: float) -> None:
        """Begin to write."""

    def drained(self) -> None:
        """The sink is no longer blocked."""

    def tick(self, now_s: float) -> None:
        """Called about once a second."""

    def finish(self) -> None:
        """End the response properly."""

    def cancel(self) -> None:
        """The client has disconnected."""


class FeedAround:
    """A feed that delegates to another one. Subclasses override parts of it."""

    __slots__ = ("_feed",)

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def open(self, sink: Sink, now_s: float) -> None:
        self._feed.open(sink, now_s)

    def drained(self) -> None:
        self._feed.drained()

    def tick(self, now_s: float) -> None:
        self._feed.tick(now_s)

    def finish(self) -> None:
        self._feed.finish()

    def cancel(self) -> None:
        self._feed.cancel()


class Response(msgspec.Struct, gc=False):
    status: int
    headers: Headers = ()
    body: tuple[Buffer, ...] = ()
    feed: Feed | None = None
    close: bool = False  # close the connection afterwards


REQUEST_ID = "x-request-id"

# On every response: browsers must not guess the content type.
COMMON_HEADERS: Headers = (("x-content-type-options", "nosniff"),)

Respond: TypeAlias = Callable[[Response], None]


def url_fault(path: str, length_bytes: int, limits: Limits) -> HeadwaterError | None:
    """The error for a URL that is too long. That of a combined feed, which lists its streams, may be longer."""
    bytes_max = limits.url_bytes_max
    if path == LIVE_PATH:
        bytes_max = max(bytes_max, COMBINED_URL_BYTES_MAX)
    return UrlTooLongError(f"the URL may have {bytes_max} bytes") if length_bytes > bytes_max else None


def transfer_encoding_fault(value: str, version: str) -> HeadwaterError | None:
    """The error for a Transfer-Encoding header, unless the body can be read. HTTP/1.0 has no transfer encodings: a
    proxy of that version may have used another length."""
    if version == "1.0":
        return BadRequestError("an HTTP/1.0 request has no Transfer-Encoding; send Content-Length")
    codings = value.strip().lower()
    if codings == "chunked":
        return None
    return TransferEncodingError(f"the transfer encoding {codings[:80]!r} is not supported, chunked is")
