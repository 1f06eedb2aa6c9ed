"""The guarded HTTP client, for all requests of the server to URLs that clients supply.

It uses HTTP/1.1 with httpcore instead of httpx, because httpx adds features that are unsafe here: redirects, cookies,
proxies and credentials from the environment, decompression, and a second URL parser.

Requests accept no content encoding, and a response with an encoding is refused. So untrusted bytes never reach a
decompressor, and a body needs no more memory than its size on the wire.

Most servers send no request, or none for a long time. So the libraries and the usual certificates of authorities are
loaded with the first request, in a thread: they take 0.1 s of processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from headwater.errors import OutboundError, RedirectRefusedError, TargetAnswerError, TargetUnreachableError
from headwater.limits import TURNS_S, Limits
from headwater.outbound import resolver as lookups
from headwater.outbound.resolver import Resolver, SystemResolver
from headwater.outbound.urls import CheckedUrl, parse_target

if TYPE_CHECKING:
    import httpcore

    from headwater.outbound.backend import Connector

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE"))
_WITH_BODY = ("POST", "PUT")
_NOT_MODIFIED = 304
_LOCATION_LENGTH_MAX = 200
_LENGTH_DIGITS_MAX = 20
_CERTIFICATES = frozenset(("SSL_CERT_FILE", "SSL_CERT_DIR"))  # variables that httpx reads

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
# Headers that the client sets itself, from the URL, the body or for the connection.
_OWN_HEADERS = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"),
    )
)


class Answer(msgspec.Struct, frozen=True):
    """A complete response with any status except a redirect."""

    status: int
    headers: dict[str, str]  # names in lower case; values of a repeated header are joined with commas
    body: bytes


class StreamedAnswer:
    """A response whose body can be iterated over once, in pieces of at most OUTBOUND_READ_BYTES."""

    def __init__(
        self, target: CheckedUrl, response: httpcore.Response, *, ends_at: float | None, body_bytes_max: int | None
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
            if now >= turn_ends:  # one read can contain many small chunks; let other tasks run in between
                await asyncio.sleep(0)
                turn_ends = loop.time() + TURNS_S
            yield piece

    def check(self) -> None:
        """Check status and headers. Raises an error if the response is refused."""
        if 300 <= self.status < 400 and self.status != _NOT_MODIFIED:
            location = self.headers.get("location", "")[:_LOCATION_LENGTH_MAX]
            raise RedirectRefusedError(f"the response is {self.status}, a redirect to {location!r}", location=location)
        if self.status < 200:
            raise TargetAnswerError(f"the response has the unexpected status {self.status}")
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise TargetAnswerError(f"the response has the content encoding {encoding[:40]!r}, but none was accepted")
        length = self.headers.get("content-length", "")
        if length.isdecimal() and self.status != _NOT_MODIFIED:
            self._check_size(int(length[:_LENGTH_DIGITS_MAX]))

    def _check_size(self, size: int) -> None:
        if self._body_bytes_max is not None and size > self._body_bytes_max:
            raise TargetAnswerError(f"the body of the response is larger than {self._body_bytes_max} bytes")


class HostSlots:
    """A limit on concurrent requests per host; the connection pool limits them in total.

    It is a semaphore per host. Hosts without active or waiting requests use no memory.
    """

    def __init__(self, per_host_max: int) -> None:
        self._per_host_max = per_host_max
        self._hosts: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    @contextlib.asynccontextmanager
    async def held(self, host: str) -> AsyncIterator[None]:
        free, users = self._hosts.setdefault(host, (asyncio.Semaphore(self._per_host_max), []))
        users.append(None)
        try:
            async with free:
                yield
        finally:
            users.pop()
            if not users:
                del self._hosts[host]


class OutboundClient:
    """Sends requests to checked targets over a bounded number of connections. Use `open_outbound` to create one."""

    def __init__(
        self,
        open_pool: Callable[[], httpcore.AsyncConnectionPool],
        slots: HostSlots,
        limits: Limits,
        *,
        development: bool,
    ) -> None:
        self._open_pool = open_pool
        self._opening = asyncio.Lock()
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._slots = slots
        self._limits = limits
        self.development = development
        self.token_for: Callable[[CheckedUrl], str | None] = lambda _: None  # sent to a target as a bearer token

    def parse(self, url: str) -> CheckedUrl:
        """Check a URL, as far as possible without DNS. Raises TargetRefusedError with the reason."""
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
        user: str = "",
    ) -> Answer:
        """Send a request and receive the complete response, with limits on time and size. `Limits` has the defaults.
        `user` is who shares lookups of names with others."""
        lookups.user.set(user)
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
        """Send a request and stream the response.

        `idle_s` limits the time between two reads. `total_s` and `body_bytes_max` limit the whole response; without
        them the body may continue without end, and only the headers have a timeout.
        """
        target = self.parse(url)
        pool = self._pool or await self._opened_pool(target)
        sent_headers = dict(headers or {})
        if (token := self.token_for(target)) is not None:
            sent_headers["authorization"] = f"Bearer {token}"
        request = _build(method, target, sent_headers, body, self._timeouts(idle_s))
        now = asyncio.get_running_loop().time()
        ends_at = None if total_s is None else now + total_s
        async with contextlib.AsyncExitStack() as held:
            with reported(target):
                async with asyncio.timeout_at(ends_at or now + self._limits.outbound_request_s):
                    await held.enter_async_context(self._slots.held(target.host))
                    response = await pool.handle_async_request(request)
                held.push_async_callback(_close, response)
                size_max = None if method == "HEAD" else body_bytes_max  # its Content-Length is not its body
                streamed = StreamedAnswer(target, response, ends_at=ends_at, body_bytes_max=size_max)
                streamed.check()
                response.extensions["network_stream"].head_received()
            yield streamed

    async def _opened_pool(self, target: CheckedUrl) -> httpcore.AsyncConnectionPool:
        async with self._opening:
            if self._pool is None:
                try:
                    self._pool = await asyncio.to_thread(self._open_pool)
                except OSError as error:  # of the certificates
                    raise _unreachable(target, "connect", error) from error
            return self._pool

    def _timeouts(self, idle_s: float | None) -> dict[str, float | None]:
        idle_s = idle_s or self._limits.outbound_idle_s
        return {"connect": self._limits.outbound_connect_s, "read": idle_s, "write": idle_s, "pool": None}

    async def aclose(self) -> None:
        """Close all connections; active requests fail."""
        if self._pool is not None:
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
    """Create a client with its own connections. `development` allows loopback, also with http.

    Certificates that the environment names are loaded at once, so that a server with a wrong name does not start."""
    if tls is None and not _CERTIFICATES.isdisjoint(os.environ):
        import httpx

        tls = httpx.create_ssl_context()
    bounds = limits or Limits()
    names = resolver or SystemResolver()

    def open_connections() -> httpcore.AsyncConnectionPool:
        from headwater.outbound.backend import open_pool

        return open_pool(names, connector, bounds, tls, development=development)

    slots = HostSlots(bounds.outbound_connections_per_host_max)
    return OutboundClient(open_connections, slots, bounds, development=development)


@contextlib.contextmanager
def reported(target: CheckedUrl) -> Iterator[None]:
    """Map errors of httpcore and the system to OutboundErrors, with the target."""
    import httpcore

    try:
        yield
    except OutboundError as error:
        error.url = target.shown
        raise
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _unreachable(target, "connect", error) from error
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise _unreachable(target, "timeout", error) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:  # OSError: invalid TLS records
        raise _unreachable(target, "lost", error) from error


def _unreachable(
    target: CheckedUrl, how: Literal["connect", "timeout", "lost"], error: Exception
) -> TargetUnreachableError:
    reason = {"connect": "no connection", "timeout": "no response in time", "lost": "the connection was lost"}[how]
    failure = TargetUnreachableError(f"{reason}: {error}" if str(error) else reason, how=how)
    failure.url = target.shown
    return failure


def _build(
    method: str, target: CheckedUrl, headers: Mapping[str, str], body: bytes, timeouts: dict[str, float | None]
) -> httpcore.Request:
    import httpcore

    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(sorted(METHODS))}, got {method!r}")
    if body and method not in _WITH_BODY:
        raise ValueError(f"a {method} request cannot have a body")
    header_values = {"user-agent": "headwater"}
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"header {name!r} contains invalid characters")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"header {name} is set by the client; remove it")
        header_values[name.lower()] = value
    sent = [("host", target.authority), *header_values.items(), ("accept-encoding", "identity")]
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
    import httpcore

    with contextlib.suppress(httpcore.NetworkError, httpcore.TimeoutException, OSError):
        await response.aclose()


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
