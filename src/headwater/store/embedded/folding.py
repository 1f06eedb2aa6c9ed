"""Folding: one task that gives the fold worker its work, and repeats what failed.

The worker folds sealed segments, oldest first, and reclaims the space of deleted streams in between. Each fold is
followed by steps of reclaiming until they have removed `RECLAIM_FACTOR` times what the fold added, or until there is no
garbage. So live data and garbage together do not grow while there is garbage, however fast streams are written and
deleted, and a fold never waits for more than that. While no segment waits, step follows step until all free space is
returned to the file system.

A worker that ends is started again, after a time that doubles with each failure in a row.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from headwater import limits as bounds
from headwater.backoff import Backoff, Streak
from headwater.measures import Histogram
from headwater.store.embedded.folder import (
    Folder,
    FoldInterruptedError,
    FoldUnavailableError,
    IndexFullError,
    IndexLockedError,
)

log = logging.getLogger("headwater.store")


class FoldingOwner(Protocol):
    """The interface of maintenance for folding."""

    @property
    def is_full(self) -> bool: ...

    async def folded(self, number: int) -> None:
        """Called when a segment was folded. It is then no longer in `sealed`."""

    def resume(self) -> None:
        """Called when a batch that waited for the fold can be written."""

    def note_index_full(self, reason: str, *, again: bool) -> None:
        """Called when there is no disk space for the index. `again`: also after the reserve was released."""

    def fail(self, error: Exception) -> None:
        """Called when the fold has failed for good."""


class Folding:
    def __init__(self, folder: Folder, owner: FoldingOwner, sealed: Iterable[int]) -> None:
        self.sealed = deque(sealed)  # segments that wait for the fold
        self.seconds = Histogram()
        self.failures = 0  # tasks that were interrupted or found no space
        self.deaths = 0  # of the worker
        self.streak = Streak(Backoff(bounds.FOLD_RETRY_S, bounds.FOLD_RETRY_MAX_S))
        self._folder = folder
        self._owner = owner
        self._task: asyncio.Task[None] | None = None
        self._owed_bytes = 0  # to be reclaimed before the next fold
        self._may_reclaim = False  # whether there may be space to reclaim

    def add(self, number: int) -> None:
        """Fold a sealed segment."""
        self.sealed.append(number)
        self.wake()

    def reclaim_soon(self) -> None:
        """Look for space to reclaim."""
        self._may_reclaim = True
        self.wake()

    def wake(self) -> None:
        if self._task is None and (self.sealed or self._may_reclaim):
            self._task = asyncio.create_task(self._run())

    async def join(self) -> None:
        """Wait until all sealed segments are folded."""
        while self.sealed and self._task is not None:  # noqa: ASYNC110 - rare, as in `Maintenance.fold_all`
            await asyncio.sleep(bounds.WRITING_WAIT_S)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self.sealed or self._may_reclaim:
                pause_s = await self._try_next()
                if pause_s:
                    await asyncio.sleep(pause_s)
        except Exception as error:  # noqa: BLE001 - any other error must stop the server
            self._owner.fail(error)
        finally:
            self._task = None

    async def _try_next(self) -> float:
        """Give the worker its next task. Returns the time to wait before the one after it."""
        try:
            if self.sealed and self._owed_bytes <= 0:
                await self._fold(self.sealed[0])
                pause_s = 0.0
            else:
                pause_s = await self._reclaim()
        except IndexFullError as error:
            again = self.streak.failures > 0
            retry_s = self._note_failure()
            self._owner.note_index_full(str(error), again=again)
            return retry_s if again else 0.0  # the reserve has been released
        except IndexLockedError as error:
            retry_s = self._note_failure()
            log.error("the journal is not folded, retrying in %.3g s: %s", retry_s, error)
            return retry_s
        except FoldInterruptedError as error:
            self.deaths += not isinstance(error, FoldUnavailableError)
            retry_s = self._note_failure()
            log.error("the fold worker failed and is started again in %.3g s: %s", retry_s, error)
            return retry_s
        self.streak.reset()
        return pause_s

    def _note_failure(self) -> float:
        """Count a failure. Returns the time to wait before the next attempt. Reclaiming is not owed meanwhile."""
        self.failures += 1
        self._owed_bytes = 0
        return self.streak.fail()

    async def _fold(self, number: int) -> None:
        began_s = time.perf_counter()
        added_bytes = await self._folder.fold(number)
        self.seconds.add(time.perf_counter() - began_s)
        self._owed_bytes = max(1, bounds.RECLAIM_FACTOR * added_bytes)
        self._may_reclaim = True
        await self._owner.folded(number)
        self.sealed.popleft()
        self._owner.resume()

    async def _reclaim(self) -> float:
        step = await self._folder.reclaim(urgent=self._owner.is_full)
        self._owed_bytes = max(0, self._owed_bytes - step.size_bytes) if step.garbage else 0
        self._may_reclaim = step.more
        return 0.0 if self.sealed else bounds.RECLAIM_PAUSE_S
