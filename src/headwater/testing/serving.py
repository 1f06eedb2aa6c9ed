"""Runs a server in memory on a thread of its own, on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvloop

from headwater.client import AsyncClient, Client
from headwater.limits import TEST_SERVER_STOP_S, Limits
from headwater.server.asgi import App
from headwater.server.native import NativeEdge

_HOST = "127.0.0.1"


class MemoryServer:
    """A running server. Give its `url` to the application under test, or use its clients.

    ```python
    with memory_server() as server, server.client() as client:
        prices = client.stream("prices")
        prices.create(messages=[{"sku": "tea", "eur": 4.20}])
        with prices.read(live=True) as reader:
            assert next(iter(reader)) == {"sku": "tea", "eur": 4.20}
    ```
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{_HOST}:{port}"

    def client(self, **options: Any) -> Client:
        """A client of the server, with the options of Client. Close it."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of the server for the event loop of the test, with the options of AsyncClient. Close it."""
        return AsyncClient(self.url, **options)

    def __repr__(self) -> str:
        return f"MemoryServer({self.url!r})"


@contextlib.contextmanager
def memory_server(*, limits: Limits | None = None, auth: str | Path | None = None) -> Iterator[MemoryServer]:
    """Run an empty server for as long as the block lasts. It has a thread and an event loop of its own.

    Use it in blocking tests and in asyncio tests alike: `with memory_server() as server`. `auth` is a file with tokens
    (`headwater token add`); without it all requests are allowed. At the end, live reads and connections are closed and
    all data is gone.
    """
    with _loop() as loop:
        serving = _serving(App(limits=limits, auth=auth, development=True), limits or Limits())
        server = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()


@contextlib.asynccontextmanager
async def _serving(app: App, limits: Limits) -> AsyncIterator[MemoryServer]:
    dispatcher = await app.start()
    edge = NativeEdge(dispatcher, limits)
    try:
        yield MemoryServer(await edge.start(_HOST, 0))
    finally:
        edge.drain()
        dispatcher.service.engine.end_live_reads()
        await edge.stop(TEST_SERVER_STOP_S)
        await app.stop()


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="headwater-testing", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
