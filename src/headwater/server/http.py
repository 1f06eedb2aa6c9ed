"""Requests and responses as both edges see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headwater.limits import ROUTES_MAX
from headwater.server.auth.callers import ANYONE, Caller

Headers: TypeAlias = tuple[tuple[str, str], ...]
Buffer: TypeAlias = bytes | memoryview
NO_ROUTE = -1


def waiting(route: int) -> int:
    """The number that a route has for requests that are answered when there is something new."""
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
    authority: str = ""  # the host that the client asked for, where a proxy tells; else the Host header has it
    peer: str = ""  # the address of the client, where the edge or a trusted proxy tells it
    caller: Caller = ANYONE  # the authenticated caller and its scopes
    began_s: float = 0.0  # when it was complete; 0: it is not timed
    route: int = NO_ROUTE  # the number of the route that it fits
    id: str = ""  # by which the log and the client name it, once that is needed
    head_bytes: int = 0  # about what its head takes, where the edge counts that

    @property
    def identity(self) -> str:
        """A short name of the caller; empty if access is not checked or the route is public."""
        return self.caller.name


class Frame:
    """Bytes of a response that stays open, encoded once for all readers."""

    __slots__ = ("body", "chunk")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.chunk: bytes | None = None  # the same as one chunk of an HTTP/1.1 body, once it was needed

    def make_chunk(self) -> bytes:
        self.chunk = b"%x\r\n%b\r\n" % (len(self.body), self.body)
        return self.chunk


class Sink(Protocol):
    """Where the frames of a response that stays open go: a connection."""

    @property
    def blocked(self) -> bool:
        """Whether what was written waits for the client."""

    def write(self, frame: Frame) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None:
        """End the response in such a way that the client can tell that it is not complete."""


class Feed(Protocol):
    """A response that stays open, as an edge sees it."""

    def open(self, sink: Sink, now_s: float) -> None:
        """Begin to write."""

    def drained(self) -> None:
        """The sink is no longer blocked."""

    def tick(self, now_s: float) -> None:
        """Called about once a second."""

    def finish(self) -> None:
        """End the response in good order."""

    def cancel(self) -> None:
        """The client is gone."""


class FeedAround:
    """A feed that passes everything on to another one. Subclasses add what they are for."""

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
    close: bool = False  # the connection is not fit for another request


REQUEST_ID = "x-request-id"

# On every response: browsers must take the content type at its word.
COMMON_HEADERS: Headers = (("x-content-type-options", "nosniff"),)

Respond: TypeAlias = Callable[[Response], None]
