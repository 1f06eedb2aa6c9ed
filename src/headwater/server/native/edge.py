"""The listener of the native edge: accepts connections, runs the timer for all of them, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from time import perf_counter

from headwater.limits import CONNECTIONS_REFUSED_MAX, EDGE_TICK_S, LISTEN_BACKLOG_CONNECTIONS, Limits
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
        self._server: asyncio.Server | None = None
        self._timer: asyncio.Task[None] | None = None

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use TLS for new connections."""
        self._shared.tls = context

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. With port 0 the system chooses one."""
        loop = asyncio.get_running_loop()
        self._tick(loop.time())
        # When no descriptor is left, libuv accepts with one that it keeps in reserve and closes the connection. The
        # listener stays open, and nothing is logged. `connections_max` keeps this from happening at all.
        self._server = await loop.create_server(self._connect, host, port, backlog=LISTEN_BACKLOG_CONNECTIONS)
        self._timer = asyncio.create_task(self._run_timer())
        return int(self._server.sockets[0].getsockname()[1])

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
        """Close idle connections and refuse further requests with 503. Requests in progress continue. The edge still
        listens, so that clients get a response instead of a reset."""
        self._shared.draining = True
        self._in_flight = set(self._shared.connections)
        for connection in self._in_flight:
            connection.drain()

    async def stop(self, grace_s: float) -> None:
        """Drain, then stop listening. Connections that are still open after `grace_s` are aborted."""
        if not self._shared.draining:
            self.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.sleep(0)  # accept what is in the backlog
                await self._until_lost(self._in_flight)
                self._close_listener()
                await self._until_lost(self._shared.connections)
        self._close_listener()
        for connection in tuple(self._shared.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _until_lost(self, connections: set[Connection]) -> None:
        shared = self._shared
        while not connections.isdisjoint(shared.connections):
            shared.one_lost.clear()
            await shared.one_lost.wait()

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
