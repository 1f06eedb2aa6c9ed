"""An event loop on a thread of its own, for blocking tests of asynchronous code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def loop_in_thread(
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Iterator[asyncio.AbstractEventLoop]:
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        try:
            asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
