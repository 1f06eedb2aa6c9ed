"""A thread that runs blocking tasks in order and reports their results on the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """Runs blocking tasks in order."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run a task, then call `done` with its result or error on the event loop."""

    def close(self) -> None: ...


class ThreadRunner:
    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, Any, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._work.put((asyncio.get_running_loop(), work, done))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            loop, work, done = item
            try:
                result, error = work(), None
            except BaseException as failure:  # noqa: BLE001 - reported to the caller
                result, error = None, failure
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(done, result, error)

    def close(self) -> None:
        """Run all submitted tasks, then stop."""
        self._work.put(None)
        self._thread.join()
