"""The guarded HTTP client, for all requests of the server to URLs that clients supply.

Most servers never send such a request, so `connections.py` is imported with the first one: httpcore and httpx take a
fifth of the time in which a server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from headwater.limits import Limits
from headwater.outbound.resolver import Resolver
from headwater.outbound.urls import Target, parse_target

if TYPE_CHECKING:
    from headwater.outbound.backend import Connector
    from headwater.outbound.connections import Connections, StreamedAnswer


class Answer(msgspec.Struct, frozen=True):
    """A complete response with any status except a redirect."""

    status: int
    headers: dict[str, str]  # names in lower case; values of a repeated header are joined with commas
    body: bytes


class OutboundClient:
    """Sends requests to checked targets over a bounded number of connections. Use `open_outbound` to create one."""

    def __init__(self, connect: Callable[[], Connections], limits: Limits, *, development: bool) -> None:
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._connections: Connections | None = None
        self._limits = limits
        self.development = development
        self.token_for: Callable[[Target], str | None] = lambda _: None  # sent to a target as a bearer token

    def parse(self, url: str) -> Target:
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
    ) -> Answer:
        """Send a request and receive the complete response, with limits on time and size. `Limits` has the defaults."""
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
        given = dict(headers or {})
        if (token := self.token_for(target)) is not None:
            given["authorization"] = f"Bearer {token}"
        connections = self._connections or await self._connected()
        async with connections.stream(
            method, target, given, body, idle_s=idle_s, total_s=total_s, body_bytes_max=body_bytes_max
        ) as streamed:
            yield streamed

    async def _connected(self) -> Connections:
        """The connections, created in a thread: the import and the certificates of the system take a while."""
        async with self._connecting:
            if self._connections is None:
                self._connections = await asyncio.to_thread(self._connect)
        return self._connections

    async def aclose(self) -> None:
        """Close all connections; active requests fail."""
        if self._connections is not None:
            await self._connections.aclose()

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
    """Create a client with its own connections. `development` allows loopback, also with http."""
    bounds = limits or Limits()

    def connect() -> Connections:
        from headwater.outbound.connections import Connections

        return Connections(bounds, resolver, connector, tls, development=development)

    return OutboundClient(connect, bounds, development=development)
