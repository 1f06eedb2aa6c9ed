"""Connections to checked addresses: resolve a name once, check all of its addresses, connect to one of them.

The connection is made to the checked address, not to the name, so that a DNS answer that changes between the check and
the connection has no effect (DNS rebinding). For TLS, httpcore uses the name of the URL in SNI and certificate check.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx
from httpcore import SOCKET_OPTION

from headwater.errors import TargetAnswerError, TargetRefusedError
from headwater.limits import (
    OUTBOUND_ADDRESSES_TRIED_MAX,
    OUTBOUND_HEAD_BYTES_MAX,
    OUTBOUND_KEEP_ALIVE_S,
    OUTBOUND_READ_BYTES,
    Limits,
)
from headwater.outbound.addresses import Address, check_addresses, literal
from headwater.outbound.resolver import Resolver

Connector = Callable[[str, int, float | None], Awaitable[httpcore.AsyncNetworkStream]]
"""Opens a TCP connection to an address (not a name) and a port, with a timeout."""


async def connect_tcp(address: str, port: int, timeout_s: float | None) -> httpcore.AsyncNetworkStream:
    """Open a TCP connection. Nothing is resolved, because the host is an address."""
    return await httpcore.AnyIOBackend().connect_tcp(address, port, timeout=timeout_s)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """The network backend of httpcore, which checks addresses."""

    def __init__(self, resolver: Resolver, connector: Connector, *, development: bool) -> None:
        self._resolver = resolver
        self._connector = connector
        self._development = development

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._checked_addresses(host)
                return BoundedStream(await self._connect(addresses, port, timeout))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection to {host} within {timeout} s") from error

    async def _checked_addresses(self, host: str) -> Sequence[Address]:
        address = literal(host)
        if address is not None:
            addresses = [address]
        else:
            try:
                addresses = list(dict.fromkeys(map(ip_address, await self._resolver(host))))
            except OSError as error:
                raise httpcore.ConnectError(f"{host} could not be resolved: {error.strerror or error}") from error
            except ValueError as error:
                raise TargetRefusedError(f"{host} resolves to an invalid address") from error
        if not addresses:
            raise httpcore.ConnectError(f"{host} has no addresses")
        check_addresses(host, addresses, development=self._development)
        return addresses

    async def _connect(
        self, addresses: Sequence[Address], port: int, timeout: float | None
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts. Each address gets an equal share of the time."""
        tried = addresses[:OUTBOUND_ADDRESSES_TRIED_MAX]
        share_s = None if timeout is None else timeout / len(tried)
        failures: list[str] = []
        for address in tried:
            try:
                return await self._connector(str(address), port, share_s)
            except (OSError, httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failures.append(f"{address}: {str(error) or type(error).__name__}")
        raise httpcore.ConnectError("; ".join(failures))


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection that is read in small steps and limits the size of response headers.

    httpcore parses everything that one read returns without yielding to the loop, so reads are small. It also accepts
    any number of informational (1xx) responses, so all bytes count as headers until the client calls `head_received`.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head_bytes_left: int | None = None

    def head_received(self) -> None:
        self._head_bytes_left = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        wanted = min(max_bytes, OUTBOUND_READ_BYTES)
        if self._head_bytes_left is None:
            return await self._stream.read(wanted, timeout)
        if not self._head_bytes_left:
            raise TargetAnswerError(f"the headers of the response are larger than {OUTBOUND_HEAD_BYTES_MAX} bytes")
        data = await self._stream.read(min(wanted, self._head_bytes_left), timeout)
        self._head_bytes_left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head_bytes_left = OUTBOUND_HEAD_BYTES_MAX
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except asyncio.CancelledError:  # httpcore closes the connection only after errors
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        try:
            return self._stream.get_extra_info(info)
        except AttributeError:  # the connection was lost, so there is no socket
            return None


def open_pool(
    resolver: Resolver, connector: Connector | None, limits: Limits, tls: ssl.SSLContext | None, *, development: bool
) -> httpcore.AsyncConnectionPool:
    """Create the connections of a client. It takes 0.1 s of processor time, so it is called in a thread."""
    importlib.import_module("anyio._backends._asyncio")  # httpcore would import it with its first request, on the loop
    return httpcore.AsyncConnectionPool(
        ssl_context=tls or httpx.create_ssl_context(),
        max_connections=limits.outbound_connections_max,
        max_keepalive_connections=limits.outbound_connections_max,
        keepalive_expiry=OUTBOUND_KEEP_ALIVE_S,
        retries=0,
        network_backend=GuardedBackend(resolver, connector or connect_tcp, development=development),
    )
