"""Tasks in the background of a part: kept until they end, waited for or cancelled when the part stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The tasks that a part has started and that have not ended.

    The event loop refers to a task only weakly, so a task that nobody keeps can be collected before it ends.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task."""
        return self.keep(asyncio.create_task(work))

    def keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
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
