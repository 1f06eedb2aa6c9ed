"""Background work of the embedded store: fold sealed segments, prepare the next segment, reclaim deleted streams.

While the disk is full, only deletions are accepted, and the reserve is released to make room for them. The disk counts
as full until there is room for the reserve and a segment. Otherwise the next write could find it full again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from headwater import limits as bounds
from headwater.limits import Limits
from headwater.measures import Histogram
from headwater.store.embedded.folder import FoldInterruptedError, FoldUnavailableError, IndexFullError
from headwater.store.embedded.journal_writer import DiskFullError, JournalFailedError, JournalWriter

if TYPE_CHECKING:
    from headwater.store.embedded.store import Parts

log = logging.getLogger("headwater.store")


class Owner(Protocol):
    """The interface of the store for maintenance."""

    full: str | None  # why the disk is full; None if it is not

    @property
    def has_unfolded(self) -> bool: ...

    async def folded(self, segment: int) -> None:
        """Called when a segment was folded."""

    def resume(self) -> None:
        """Called when a batch that waited for the fold can be written."""

    def refuse_held(self, error: Exception) -> None:
        """Called when the fold has stopped because the disk is full."""

    def fail(self, error: Exception) -> None:
        """Called when the store has failed."""


class Maintenance:
    """It has more than 20 methods because all of them work on the same segments."""

    def __init__(
        self, journal: JournalWriter, parts: Parts, limits: Limits, owner: Owner, sealed: Iterable[int]
    ) -> None:
        self.writing = False  # whether a batch is being written
        self.segment = journal.number  # the segment of new batches
        self.folds = Histogram()  # seconds
        self.fold_failures = 0
        self._journal = journal
        self._helper = parts.helper
        self._folder = parts.folder
        self._reserve = parts.reserve
        self._limits = limits
        self._owner = owner
        self.sealed = deque(sealed)  # segments that wait for the fold
        self._folding: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._interruptions = 0  # consecutive interruptions of the fold
        self._idle_ticks = 0

    async def start(self) -> None:
        """Allocate the reserve and the file of the first segment."""
        error = await self._in_helper(self._take_room)
        if error is not None:
            self.note_full(str(error))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._folding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_behind(self) -> bool:
        """Whether writers must wait for the fold."""
        return len(self.sealed) > self._limits.unfolded_segments_max

    def note_write(self) -> None:
        self._idle_ticks = 0

    # Folding

    def note_sealed(self) -> None:
        """Fold the segments that were sealed since the last call."""
        while self.segment < self._journal.number:
            self.sealed.append(self.segment)
            self.segment += 1
        if self.sealed and self._folding is None:
            self._folding = asyncio.create_task(self._fold())

    async def fold_all(self) -> None:
        """Seal the current segment and fold everything."""
        while self.writing:  # noqa: ASYNC110 - rare; an event would have to be set for every batch
            await asyncio.sleep(bounds.WRITING_WAIT_S)
        self._roll()
        while self._folding is not None:
            await asyncio.wait([self._folding])

    def fold_soon(self) -> None:
        """Seal the current segment, unless sealed segments already wait. Folded data needs no memory."""
        if not self.writing and not self.sealed and self._owner.has_unfolded:
            self._roll()

    async def _fold(self) -> None:
        try:
            while self.sealed:
                number = self.sealed[0]
                began_s = time.perf_counter()
                await self._fold_one(number)
                self.folds.add(time.perf_counter() - began_s)
                self.sealed.popleft()
                await self._owner.folded(number)
                self._journal.recycle(number, keep=self._owner.full is None)
                self._owner.resume()
                self._interruptions = 0
                await self._folder.reclaim(self._limits.reclaim_chunks, urgent=False)  # also under load
        except IndexFullError as error:
            self.fold_failures += 1
            self._owner.refuse_held(error)
        except FoldInterruptedError as error:
            self.fold_failures += 1
            self._note_interruption(error)
        except Exception as error:  # noqa: BLE001 - any error must stop the server
            self._owner.fail(error)
        finally:
            self._folding = None

    async def _fold_one(self, number: int) -> None:
        """Fold a segment. If there is no disk space, release the reserve and retry."""
        try:
            await self._folder.fold(number)
        except IndexFullError as error:
            if self._owner.full is not None:
                raise
            self.note_full(str(error))
            await self._folder.fold(number)

    def _note_interruption(self, error: Exception) -> None:
        self._interruptions += not isinstance(error, FoldUnavailableError)  # which is temporary
        if self._interruptions >= bounds.FOLD_INTERRUPTIONS_MAX:
            self._owner.fail(error)
        else:
            log.error("the fold failed and is retried: %s", error)

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except OSError as error:  # for example, no file descriptor is available
                log.warning("background work failed and is retried: %s", error)
            await asyncio.sleep(bounds.MAINTAIN_S if self._owner.full is None else bounds.FULL_RETRY_S)

    async def _look(self) -> None:
        """Run the maintenance that is due."""
        if self._owner.full is None:
            await self._prepare()
        else:
            await self._look_for_room()
        idle_ticks_max = max(1, round(self._limits.fold_idle_s / bounds.MAINTAIN_S))
        if self._idle_ticks >= idle_ticks_max and not self.writing and self._owner.has_unfolded:
            self._roll()
        self._idle_ticks += 1
        if self._folding is None and (self._owner.full is None or not self.sealed):
            self.note_sealed()
            if self._folding is None:
                await self._reclaim()

    async def _reclaim(self) -> None:
        try:
            await self._folder.reclaim(self._limits.reclaim_chunks, urgent=self._owner.full is not None)
        except (IndexFullError, FoldInterruptedError) as error:
            log.warning("reclaiming space failed and is retried: %s", error)
        except Exception as error:  # noqa: BLE001 - any error must stop the server
            self._owner.fail(error)

    def _roll(self) -> None:
        try:
            self._journal.roll()
        except DiskFullError as error:
            self.note_full(str(error))
        except JournalFailedError as error:
            self._owner.fail(error)
        self.note_sealed()

    # Disk space

    def note_full(self, reason: str) -> None:
        """Note that there is no disk space for a batch or the fold."""
        if self._owner.full is None:
            log.error("the disk is full, only deletions are accepted: %s", reason)
        self._owner.full = reason
        self._release_reserve()
        self.note_sealed()

    def _release_reserve(self) -> None:
        try:
            self._reserve.release()
            self._journal.drop_spare()
        except OSError as error:
            log.warning("failed to release the reserve: %s", error)

    async def _look_for_room(self) -> None:
        """End the state of a full disk if there is room for the reserve and a segment."""
        if self.sealed:
            if await self._in_helper(self._reserve.take) is None:
                self._release_reserve()
                self.note_sealed()
        elif await self._in_helper(self._take_room) is None:
            log.warning("the disk has free space again")
            self._owner.full = None

    def _take_room(self) -> None:
        """Allocate the reserve and the file of the next segment, both or neither."""
        self._reserve.take()
        try:
            self._journal.prepare()
        except OSError:
            self._reserve.release()
            raise

    async def _prepare(self) -> None:
        """Allocate the file of the next segment in advance. A full disk is not an error yet."""
        error = await self._in_helper(self._journal.prepare)
        if error is not None and not isinstance(error, OSError):
            self._owner.fail(RuntimeError(f"failed to prepare a segment: {error}"))

    async def _in_helper(self, work: Callable[[], None]) -> BaseException | None:
        """Run blocking work in the helper thread. Returns its error, if any."""
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def finished(_: None, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        self._helper.submit(work, finished)
        return await done
