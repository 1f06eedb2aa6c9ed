"""Background work of the embedded store: fold what is sealed, keep a spare segment ready, reclaim deleted streams.

While the disk is full only what frees space is accepted, and the reserve is released to make room for that. The disk
counts as full until there is room again for the reserve and for a segment, so it is not full again at the next write.
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
    """The store, as maintenance sees it."""

    full: str | None  # why there is no room at present

    @property
    def has_unfolded(self) -> bool: ...

    async def folded(self, segment: int) -> None:
        """A segment is in the index."""

    def resume(self) -> None:
        """There is room for a batch that waited for the fold."""

    def refuse_held(self, error: Exception) -> None:
        """The fold has stopped because the disk is full."""

    def fail(self, error: Exception) -> None:
        """The store has failed."""


class Maintenance:
    """Over 20 methods, since all of it is about the same segments; each is a few lines."""

    def __init__(
        self, journal: JournalWriter, parts: Parts, limits: Limits, owner: Owner, sealed: Iterable[int]
    ) -> None:
        self.writing = False  # a batch is on its way to the disk
        self.segment = journal.number  # the one that batches go to
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
        self._interruptions = 0  # of the fold, in a row
        self._idle_ticks = 0

    async def start(self) -> None:
        """Have the reserve and the first segment's file ready."""
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
        """Fold the segments that the journal has left."""
        while self.segment < self._journal.number:
            self.sealed.append(self.segment)
            self.segment += 1
        if self.sealed and self._folding is None:
            self._folding = asyncio.create_task(self._fold())

    async def fold_all(self) -> None:
        """Seal what was written so far and fold everything."""
        while self.writing:  # noqa: ASYNC110 - this is rare, and an event would have to be set for every batch
            await asyncio.sleep(bounds.WRITING_WAIT_S)
        self._roll()
        while self._folding is not None:
            await asyncio.wait([self._folding])

    def fold_soon(self) -> None:
        """Seal what was written so far, unless sealed segments wait already: once folded it needs no memory."""
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
                await self._folder.reclaim(self._limits.reclaim_chunks, urgent=False)  # or it starves
        except IndexFullError as error:
            self.fold_failures += 1
            self._owner.refuse_held(error)
        except FoldInterruptedError as error:
            self.fold_failures += 1
            self._note_interruption(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._owner.fail(error)
        finally:
            self._folding = None

    async def _fold_one(self, number: int) -> None:
        """Fold a segment, with the room of the reserve where there is no other."""
        try:
            await self._folder.fold(number)
        except IndexFullError as error:
            if self._owner.full is not None:
                raise
            self.note_full(str(error))
            await self._folder.fold(number)

    def _note_interruption(self, error: Exception) -> None:
        self._interruptions += not isinstance(error, FoldUnavailableError)  # which passes
        if self._interruptions >= bounds.FOLD_INTERRUPTIONS_MAX:
            self._owner.fail(error)
        else:
            log.error("folding starts again: %s", error)

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except OSError as error:  # no descriptor at present, for example
                log.warning("background work is tried again: %s", error)
            await asyncio.sleep(bounds.MAINTAIN_S if self._owner.full is None else bounds.FULL_RETRY_S)

    async def _look(self) -> None:
        """Do the maintenance that is due."""
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
            log.warning("reclaiming is tried again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._owner.fail(error)

    def _roll(self) -> None:
        try:
            self._journal.roll()
        except DiskFullError as error:
            self.note_full(str(error))
        except JournalFailedError as error:
            self._owner.fail(error)
        self.note_sealed()

    # Room

    def note_full(self, reason: str) -> None:
        """There is no room for a batch or for the fold."""
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
            log.warning("the reserve could not be released: %s", error)

    async def _look_for_room(self) -> None:
        """Leave the state of a full disk once there is room for the reserve and for a segment."""
        if self.sealed:
            if await self._in_helper(self._reserve.take) is None:
                self._release_reserve()
                self.note_sealed()
        elif await self._in_helper(self._take_room) is None:
            log.warning("there is room on the disk again")
            self._owner.full = None

    def _take_room(self) -> None:
        """The reserve and the next segment's file, both or neither."""
        self._reserve.take()
        try:
            self._journal.prepare()
        except OSError:
            self._reserve.release()
            raise

    async def _prepare(self) -> None:
        """The next segment's file, made ahead of need. No room for it is no harm yet."""
        error = await self._in_helper(self._journal.prepare)
        if error is not None and not isinstance(error, OSError):
            self._owner.fail(RuntimeError(f"preparing a segment failed: {error}"))

    async def _in_helper(self, work: Callable[[], None]) -> BaseException | None:
        """Do blocking work elsewhere; what went wrong with it."""
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def finished(_: None, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        self._helper.submit(work, finished)
        return await done
