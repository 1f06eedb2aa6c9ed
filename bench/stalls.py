"""A server in a thread of this process, and how long anything it did held its event loop.

The processor time of the loop's thread is measured between two turns of a 5 ms ticker, so that other work on the
machine does not count. A call in another thread that keeps the interpreter's lock shows as wall time only; that is
recorded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from bench.servers import Server
from headwater.engine import Engine
from headwater.limits import Limits
from headwater.server.dispatch import Dispatcher
from headwater.server.native import NativeEdge
from headwater.server.service import Service
from headwater.store.memory import MemoryStore

TICK_S = 0.005


@dataclass
class Stall:
    """The worst since the last reset."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    def reset(self) -> None:
        self.cpu_s = self.wall_s = 0.0


@contextlib.contextmanager
def watched() -> Iterator[tuple[Server, Stall]]:
    """Serve memory natively; the stall counts from now on."""
    limits = Limits()
    stall = Stall()
    ready: list[int] = []
    up = threading.Event()
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        engine = Engine(MemoryStore(), limits)
        edge = NativeEdge(Dispatcher(Service(engine, limits)), limits)
        await engine.start()
        ready.append(await edge.start("127.0.0.1", 0))
        ticking = asyncio.create_task(_tick(stall))
        loops.append(asyncio.get_running_loop())
        up.set()
        await stop.wait()
        ticking.cancel()
        engine.drain()
        await edge.stop(1.0)
        await engine.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    if not up.wait(60):
        raise TimeoutError("the server did not start")
    gc.collect()
    gc.freeze()  # the garbage collector would scan all modules of this process in the loop's thread
    stall.reset()
    try:
        yield Server("watched", "127.0.0.1", ready[0], 0), stall
    finally:
        gc.unfreeze()
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)


async def _tick(stall: Stall) -> None:
    while True:
        cpu_s, wall_s = time.thread_time(), time.monotonic()
        await asyncio.sleep(TICK_S)
        stall.cpu_s = max(stall.cpu_s, time.thread_time() - cpu_s)
        stall.wall_s = max(stall.wall_s, time.monotonic() - wall_s - TICK_S)
