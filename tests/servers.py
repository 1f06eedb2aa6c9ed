"""A server inside the process of the tests, on a thread of its own.

Suites that need a server process (fault, interop, spark and others) start one with `bench.servers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import uvloop
from bench.servers import Server as ServerProcess

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.server.compacting.compactor import Compactor
from headwater.server.dispatch import Dispatcher
from headwater.server.native import NativeEdge
from headwater.server.service import Service
from headwater.store.contract import Store
from headwater.store.memory import MemoryStore
from tests.loops import loop_in_thread
from tests.waiting import LIMIT_S

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Server:
    """Where a server listens; `bench.servers.Server` has these attributes as well."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/v1/stream"


def exit_code_of(server: ServerProcess) -> int | None:
    """The exit code of a server process that this process has started; None while it runs."""
    ended = os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_status


@contextlib.asynccontextmanager
async def _listening(limits: Limits, tls: ssl.SSLContext | None, store: Store) -> AsyncIterator[int]:
    """Serve a store on a free port."""
    engine = Engine(store, limits)
    compactor = Compactor(engine, limits)  # compacts on request only
    edge = NativeEdge(Dispatcher(Service(engine, limits, compactor=compactor)), limits)
    if tls is not None:
        edge.use_tls(tls)
    await engine.start()
    try:
        yield await edge.start(HOST, 0)
    finally:
        edge.drain()
        engine.drain()
        await edge.stop(grace_s=1)
        await engine.stop()


@contextlib.contextmanager
def serving(limits: Limits, tls: ssl.SSLContext | None = None, store: Store | None = None) -> Iterator[Server]:
    """A server that keeps its streams in memory or in another store, for as long as the block lasts."""
    with loop_in_thread(uvloop.new_event_loop) as loop:
        listening = _listening(limits, tls, store or MemoryStore())
        port = asyncio.run_coroutine_threadsafe(listening.__aenter__(), loop).result(LIMIT_S)
        try:
            yield Server(HOST, port, "http" if tls is None else "https")
        finally:
            asyncio.run_coroutine_threadsafe(listening.__aexit__(None, None, None), loop).result(LIMIT_S)
