"""The listener of the native edge: accepts connections, runs the timer for all of them, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Sequence
from time import perf_counter

from headwater.limits import (
    CONNECTIONS_REFUSED_MAX,
    DRAIN_PAUSE_S,
    EDGE_TICK_S,
    LISTEN_BACKLOG_CONNECTIONS,
    STOP_LAST_S,
    Limits,
)
from headwater.server.dispatch import Dispatcher
from headwater.server.memory import MemoryMark
from headwater.server.native.connection import Connection
from headwater.server.native.shared import Shared
from headwater.server.native.tls import TlsTransport


class _Hangup(asyncio.Protocol):
    """Closes a connection without a response, while many others are being refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class NativeEdge:
    def __init__(self, dispatcher: Dispatcher, limits: Limits, memory: MemoryMark | None = None) -> None:
        self._shared = Shared(dispatcher, limits, memory)
        self._in_flight: set[Connection] = set()  # when draining began
        self._servers: list[asyncio.Server] = []
        self._keeps_queue = False  # another process accepts the connections that this one does not
        self._timer: asyncio.Task[None] | None = None

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use TLS for new connections."""
        self._shared.tls = context

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = (), *, shared: bool = False) -> int:
        """Listen, and return the port. With port 0 the system chooses one. Given `sockets`, listen on these; another
        process keeps them open. If it is `shared`, other processes of this server listen on the same port."""
        loop = asyncio.get_running_loop()
        self._tick(loop.time())
        # When no descriptor is left, libuv accepts with one that it keeps in reserve and closes the connection. The
        # listener stays open, and nothing is logged. `connections_max` keeps this from happening at all.
        backlog = LISTEN_BACKLOG_CONNECTIONS
        if sockets:
            self._keeps_queue = True
            for one in sockets:
                self._servers.append(await loop.create_server(self._connect, sock=one, backlog=backlog))
        else:
            self._servers.append(
                await loop.create_server(self._connect, host, port, backlog=backlog, reuse_port=shared or None)
            )
        self._timer = asyncio.create_task(self._run_timer())
        return int(self._servers[0].sockets[0].getsockname()[1])

    def _connect(self) -> asyncio.BaseProtocol:
        if len(self._shared.refused) >= CONNECTIONS_REFUSED_MAX:
            return _Hangup()
        connection = Connection(self._shared)
        return connection if self._shared.tls is None else TlsTransport(self._shared.tls, connection, self._shared)

    async def _run_timer(self) -> None:
        loop = asyncio.get_running_loop()
        delays = self._shared.observer.loop_delays
        while True:
            due_s = perf_counter() + EDGE_TICK_S
            await asyncio.sleep(EDGE_TICK_S)
            delays.add(max(0.0, perf_counter() - due_s))
            self._tick(loop.time())

    def _tick(self, now_s: float) -> None:
        self._shared.clock.now_s = now_s
        self._shared.heads.renew_date()
        self._shared.observer.tick(EDGE_TICK_S)
        for connection in tuple(self._shared.connections):
            connection.tick(now_s)

    def drain(self) -> None:
        """Refuse further requests with 503, and end live reads. Requests that have begun to arrive continue. The edge
        still listens, so that clients get a response instead of a reset; or, if another process keeps its sockets, new
        connections wait there for the next server."""
        self._shared.draining = True
        if self._keeps_queue:
            self._close_listeners()
        self._in_flight = set(self._shared.connections)
        for connection in self._in_flight:
            connection.stop()

    async def stop(self, grace_s: float) -> None:
        """Drain, then stop listening. Requests that are not complete after `grace_s` get 503, and connections that are
        still open shortly after are aborted.

        Connections without a request are closed after a pause: a client that is about to send gets 503 instead."""
        if not self._shared.draining:
            self.drain()
        connections = self._shared.connections
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                if self._in_flight:
                    await asyncio.sleep(DRAIN_PAUSE_S)  # their clients may connect again, also after a response
                _close_idle(self._in_flight)
                await self._until_lost(self._in_flight)
                await asyncio.sleep(0)  # accept what is in the backlog
                self._close_listeners()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_PAUSE_S):
                        await self._until_lost(connections)
                _close_idle(connections)
                await self._until_lost(connections)
        self._close_listeners()
        await self._end_all()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _end_all(self) -> None:
        connections = self._shared.connections
        for connection in tuple(connections):
            connection.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LAST_S):
                await self._until_lost({one for one in connections if one.has_given_up})
        for connection in tuple(connections):
            connection.abort()

    async def _until_lost(self, connections: set[Connection]) -> None:
        shared = self._shared
        while not connections.isdisjoint(shared.connections):
            shared.one_lost.clear()
            await shared.one_lost.wait()

    def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()


def _close_idle(connections: Iterable[Connection]) -> None:
    for connection in tuple(connections):
        connection.close_when_idle()
