"""The guarded HTTP client, for every request of the server to a URL that a client gave.

It does HTTP/1.1 by httpcore, below httpx, because what httpx adds is what must not happen here: redirects, cookies,
proxies and credentials of the environment, decoding of bodies, and a second parser of URLs.

Answers are asked for without a content encoding, and one that has an encoding is refused: no decompressor ever sees
bytes of a stranger, and a body takes as much memory as it took on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self

import httpcore
import httpx
import msgspec

from headwater.errors import OutboundError, RedirectRefusedError, TargetAnswerError, TargetUnreachableError
from headwater.limits import OUTBOUND_KEEP_ALIVE_S, TURNS_S, Limits
from headwater.outbound.backend import BoundedStream, Connector, GuardedBackend, connect_tcp
from headwater.outbound.resolver import Resolver, SystemResolver
from headwater.outbound.slots import HostSlots
from headwater.outbound.urls import Target, parse_target

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE"))
_WITH_BODY = ("POST", "PUT")
_NOT_MODIFIED = 304
_LOCATION_LENGTH_MAX = 200
_LENGTH_DIGITS_MAX = 20

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
# Written here from the URL and the body; or about the connection, which is not the caller's.
_OWN_HEADERS = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"),
    )
)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, of any status but a redirect."""

    status: int
    headers: dict[str, str]  # names in lower case; values of a repeated one joined by commas
    body: bytes


class StreamedAnswer:
    """An answer whose body is received while it is iterated over, once, in pieces of at most OUTBOUND_READ_BYTES."""

    def __init__(
        self, target: Target, response: httpcore.Response, *, ends_at: float | None, body_bytes_max: int | None
    ) -> None:
        self.status = response.status
        self.headers = _joined(response.headers)
        self._target = target
        self._stream = response.aiter_stream()
        self._ends_at = ends_at
        self._body_bytes_max = body_bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        received, turn_ends = 0, loop.time() + TURNS_S
        while True:
            with reported(self._target):
                try:
                    async with asyncio.timeout_at(self._ends_at):
                        piece = await anext(self._stream)
                except StopAsyncIteration:
                    return
                now = loop.time()
                if self._ends_at is not None and now >= self._ends_at:
                    raise TimeoutError
                received += len(piece)
                self._check_size(received)
            if now >= turn_ends:  # small chunks are many pieces of one read: others have their turn between them
                await asyncio.sleep(0)
                turn_ends = loop.time() + TURNS_S
            yield piece

    def check(self) -> None:
        """Refuse by its head an answer that is not to be read."""
        if 300 <= self.status < 400 and self.status != _NOT_MODIFIED:
            location = self.headers.get("location", "")[:_LOCATION_LENGTH_MAX]
            raise RedirectRefusedError(f"answered {self.status} with the location {location!r}", location=location)
        if self.status < 200:
            raise TargetAnswerError(f"answered {self.status}, which was not asked for")
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise TargetAnswerError(f"the answer is encoded ({encoding[:40]!r}), although identity was asked for")
        length = self.headers.get("content-length", "")
        if length.isdecimal() and self.status != _NOT_MODIFIED:
            self._check_size(int(length[:_LENGTH_DIGITS_MAX]))

    def _check_size(self, size: int) -> None:
        if self._body_bytes_max is not None and size > self._body_bytes_max:
            raise TargetAnswerError(f"the body of the answer is larger than {self._body_bytes_max} bytes")


class OutboundClient:
    """Requests to checked targets over a bounded number of connections; made by `open_outbound`."""

    def __init__(
        self, pool: httpcore.AsyncConnectionPool, slots: HostSlots, limits: Limits, *, development: bool
    ) -> None:
        self._pool = pool
        self._slots = slots
        self._limits = limits
        self.development = development
        self.token_for: Callable[[Target], str | None] = lambda _: None  # sent to a target as a bearer token

    def parse(self, url: str) -> Target:
        """Check a URL without a request, as far as that is possible without DNS; TargetRefusedError says why not."""
        return parse_target(url, development=self.development)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        total_s: float | None = None,
        body_bytes_max: int | None = None,
    ) -> Answer:
        """One request and its whole answer, within a time and a size; the defaults are those of the limits."""
        async with self.stream(
            method,
            url,
            headers=headers,
            body=body,
            total_s=total_s or self._limits.outbound_request_s,
            body_bytes_max=self._limits.outbound_body_bytes_max if body_bytes_max is None else body_bytes_max,
        ) as streamed:
            content = bytearray()
            async for piece in streamed:
                content += piece
        return Answer(streamed.status, streamed.headers, bytes(content))

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        idle_s: float | None = None,
        total_s: float | None = None,
        body_bytes_max: int | None = None,
    ) -> AsyncIterator[StreamedAnswer]:
        """One request whose answer is read as it comes.

        `idle_s` bounds the silence between two reads. `total_s` and `body_bytes_max` bound the whole; without them only
        the head of the answer has a time by which it must be there, and the body may go on for ever.
        """
        target = self.parse(url)
        given = dict(headers or {})
        if (token := self.token_for(target)) is not None:
            given["authorization"] = f"Bearer {token}"
        request = _build(method, target, given, body, self._timeouts(idle_s))
        now = asyncio.get_running_loop().time()
        ends_at = None if total_s is None else now + total_s
        async with contextlib.AsyncExitStack() as held:
            with reported(target):
                async with asyncio.timeout_at(ends_at or now + self._limits.outbound_request_s):
                    await held.enter_async_context(self._slots.held(target.host))
                    response = await self._pool.handle_async_request(request)
                held.push_async_callback(_close, response)
                size_max = None if method == "HEAD" else body_bytes_max  # its Content-Length is not that of its body
                streamed = StreamedAnswer(target, response, ends_at=ends_at, body_bytes_max=size_max)
                streamed.check()
                connection = response.extensions["network_stream"]
                if isinstance(connection, BoundedStream):
                    connection.head_received()
            yield streamed

    def _timeouts(self, idle_s: float | None) -> dict[str, float | None]:
        idle_s = idle_s or self._limits.outbound_idle_s
        return {"connect": self._limits.outbound_connect_s, "read": idle_s, "write": idle_s, "pool": None}

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def open_outbound(
    *,
    development: bool = False,
    limits: Limits | None = None,
    resolver: Resolver | None = None,
    connector: Connector | None = None,
    tls: ssl.SSLContext | None = None,
) -> OutboundClient:
    """A client with connections of its own. `development`: loopback may be called, by http too."""
    bounds = limits or Limits()
    backend = GuardedBackend(resolver or SystemResolver(), connector or connect_tcp, development=development)
    pool = httpcore.AsyncConnectionPool(
        ssl_context=tls or httpx.create_ssl_context(),
        max_connections=bounds.outbound_connections_max,
        max_keepalive_connections=bounds.outbound_connections_max,
        keepalive_expiry=OUTBOUND_KEEP_ALIVE_S,
        retries=0,
        network_backend=backend,
    )
    return OutboundClient(pool, HostSlots(bounds.outbound_connections_per_host_max), bounds, development=development)


@contextlib.contextmanager
def reported(target: Target) -> Iterator[None]:
    """Errors of the layers below as errors of ours, which name the target."""
    try:
        yield
    except OutboundError as error:
        error.url = target.shown
        raise
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _unreachable(target, "connect", error) from error
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise _unreachable(target, "timeout", error) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:  # OSError: TLS records that are broken
        raise _unreachable(target, "lost", error) from error


def _unreachable(
    target: Target, how: Literal["connect", "timeout", "lost"], error: Exception
) -> TargetUnreachableError:
    reason = {"connect": "no connection", "timeout": "no answer in time", "lost": "the connection was lost"}[how]
    failure = TargetUnreachableError(f"{reason}: {error}" if str(error) else reason, how=how)
    failure.url = target.shown
    return failure


def _build(
    method: str, target: Target, headers: Mapping[str, str], body: bytes, timeouts: dict[str, float | None]
) -> httpcore.Request:
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(sorted(METHODS))}")
    if body and method not in _WITH_BODY:
        raise ValueError(f"a {method} has no body")
    given = {"user-agent": "headwater"}
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"header {name!r} has characters that a header cannot have")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"header {name} is not for callers to set")
        given[name.lower()] = value
    sent = [("host", target.authority), *given.items(), ("accept-encoding", "identity")]
    if method in _WITH_BODY:
        sent.append(("content-length", str(len(body))))
    return httpcore.Request(
        method,
        httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
        headers=sent,
        content=body,
        extensions={"timeout": timeouts},
    )


async def _close(response: httpcore.Response) -> None:
    with contextlib.suppress(httpcore.NetworkError, httpcore.TimeoutException, OSError):
        await response.aclose()


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
