"""The task that follows a stream for a database, and waiting for its results, asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from headwater import limits
from headwater.client import forking
from headwater.errors import ClientError
from headwater.state.checkpoints import save
from headwater.state.following import FollowedState
from headwater.state.tables import StateChange


class AsyncBackground(FollowedState):
    """Runs the follower as a task; the blocking twin uses a thread. An event loop runs one callback at a time, so
    there are no locks."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._lock = None
        self._process = forking.process()
        self._worker: asyncio.Task[None] | None = None
        self._watches: set[_ChangeQueue] = set()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the task, if it is not running."""
        self._check_process()
        if self._worker is None and not self._closing:
            self._process = forking.process()
            self._worker = asyncio.create_task(work())

    async def _end(self) -> None:
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _wait(self, until: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        self._check_process()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(until)
        except TimeoutError:
            raise TimeoutError(f"{what} within {timeout_s} s") from None

    async def _notify(self) -> None:
        for watch in self._watches:
            watch.news.set()
        async with self._changed:
            self._changed.notify_all()

    async def _call(self, hook: Callable[[], Any]) -> None:
        """Call a function of the user, which may be a coroutine function."""
        done = hook()
        if inspect.isawaitable(done):
            await done

    async def _save(self, path: Path, data: bytes) -> None:
        await asyncio.to_thread(save, path, data)

    def changes(self, *collections: str) -> AsyncIterator[StateChange[Any]]:
        """Iterate over the changes of these collections, or of all, from now on, until the stream or database ends.

        An iterator that falls too far behind gets an error, so that its queue does not fill the memory.
        """
        self._check_process()
        watch = _ChangeQueue(set(collections or self._database.tables))
        watch.end = self._database.on_change(watch.note)
        self._watches.add(watch)
        return self._watched(watch)

    async def _watched(self, watch: _ChangeQueue) -> AsyncIterator[StateChange[Any]]:
        try:
            while True:
                while watch.waiting:
                    yield watch.waiting.popleft()
                if watch.lost:
                    raise ClientError(f"more than {limits.STATE_CHANGES_WAITING_MAX} changes were waiting")
                if self.error is not None:
                    raise self.error
                if self._is_over():
                    return
                watch.news.clear()
                await watch.news.wait()
        finally:
            watch.end()
            self._watches.discard(watch)


class _ChangeQueue:
    """The queue of one iterator over changes, with a maximum length."""

    def __init__(self, wanted: set[str]) -> None:
        self.waiting: deque[StateChange[Any]] = deque()
        self.news = asyncio.Event()
        self.lost = False
        self.end: Callable[[], None] = lambda: None
        self._wanted = wanted

    def note(self, change: StateChange[Any]) -> None:
        if change.collection not in self._wanted or self.lost:
            return
        if len(self.waiting) >= limits.STATE_CHANGES_WAITING_MAX:
            self.waiting.clear()
            self.lost = True
        else:
            self.waiting.append(change)
        self.news.set()
