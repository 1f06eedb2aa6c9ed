"""Run a server until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

import uvloop

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.server.handlers import Handlers
from headwater.server.native import NativeEdge
from headwater.store.contract import Store
from headwater.store.memory import MemoryStore

log = logging.getLogger("headwater.server")

STOP_GRACE_S = 5.0


def serve(host: str, port: int, limits: Limits, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code to leave with."""
    return uvloop.run(_serve(MemoryStore(), host, port, limits, ready))


async def _serve(store: Store, host: str, port: int, limits: Limits, ready: Callable[[str], None]) -> int:
    stop = asyncio.Event()
    failures: list[BaseException] = []

    def fatal(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(store, limits, fatal=fatal)
    edge = NativeEdge(Handlers(engine), limits)
    await engine.start()
    try:
        bound = await edge.start(host, port)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{bound}")
        await stop.wait()
    finally:
        engine.send_home()
        await edge.stop(STOP_GRACE_S)
        with contextlib.suppress(Exception):
            await engine.stop()
    return 1 if failures else 0
