"""The listening side of the native edge: accepting connections, the timer that serves all of them, and stopping."""

from __future__ import annotations

import asyncio
import contextlib

from headwater.limits import EDGE_TICK_S, LISTEN_BACKLOG_CONNECTIONS, Limits
from headwater.server.handlers import Handlers
from headwater.server.native.connection import Connection
from headwater.server.native.shared import Shared


class NativeEdge:
    def __init__(self, handlers: Handlers, limits: Limits) -> None:
        self._shared = Shared(handlers, limits)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port: the system chooses it if 0 is given."""
        loop = asyncio.get_running_loop()
        self._tick(loop.time())
        self._server = await loop.create_server(
            lambda: Connection(self._shared), host, port, backlog=LISTEN_BACKLOG_CONNECTIONS
        )
        self._timer = asyncio.create_task(self._run_timer())
        return int(self._server.sockets[0].getsockname()[1])

    async def _run_timer(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EDGE_TICK_S)
            self._tick(loop.time())

    def _tick(self, now_s: float) -> None:
        self._shared.clock.now_s = now_s
        self._shared.heads.renew_date()
        for connection in tuple(self._shared.connections):
            connection.tick(now_s)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let responses under way finish, and abort the connections that are left after `grace_s`."""
        shared = self._shared
        shared.stopping = True
        if self._server is not None:
            self._server.close()
        if not shared.connections:
            shared.none_left.set()
        for connection in tuple(shared.connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await shared.none_left.wait()
        for connection in tuple(shared.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
