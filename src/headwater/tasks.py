"""Tasks in the background of a part: kept until they end, waited for or cancelled when the part stops. And work in a
thread, which cannot be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """The tasks that a part has started and that have not ended.

    The event loop refers to a task only weakly, so a task that nobody keeps can be collected before it ends.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task."""
        return self.keep(asyncio.create_task(work))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keep a task that was started elsewhere."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel all tasks. `ended` waits until they have ended."""
        for task in self._running:
            task.cancel()

    async def ended(self) -> None:
        """Wait until all tasks have ended, with those that they start meanwhile. Their errors are ignored."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)


async def in_thread(work: Callable[[], T], undo: Callable[[T], Awaitable[object]]) -> T:
    """Run work that opens something in a thread. A cancellation waits for the end of the thread and undoes the work."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((running,))
        if not running.cancelled() and running.exception() is None:
            await undo(running.result())
        raise
