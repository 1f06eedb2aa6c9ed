"""Background work of the embedded store: seal segments, prepare the next segment, and end the state of a full disk.
`folding.py` folds the sealed segments.

A segment is sealed when it is full or has changed many streams, and before that if nothing was written for a while, or
some time after a stream was deleted in it. Space returns only after the fold, and a segment with little traffic may
not be full for hours.

While the disk is full, only commands that free space are accepted. They need room themselves: the records go into
segments whose blocks are allocated already (the current one and the spare one), and the fold gets the space of the
reserve. Their segment is sealed and folded at once, so that space returns while clients repeat what was refused.

The state ends when the reserve and more than one segment fit, at two checks in a row. It began because there was no
room for one. So it does not flap when little space returns, or for a moment only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from headwater import limits as bounds
from headwater.limits import Limits
from headwater.store.embedded.folding import Folding
from headwater.store.embedded.journal_writer import DiskFullError, JournalFailedError, JournalWriter

if TYPE_CHECKING:
    from headwater.store.embedded.store import Parts

log = logging.getLogger("headwater.store")


class Owner(Protocol):
    """The interface of the store for maintenance."""

    full: str | None  # why the disk is full; None if it is not

    @property
    def has_unfolded(self) -> bool: ...

    def has_deletions(self, segment: int) -> bool:
        """Whether streams were deleted in a segment."""

    async def folded(self, segment: int) -> None:
        """Called when a segment was folded."""

    def resume(self) -> None:
        """Called when a batch that waited for the fold can be written."""

    def refuse_held(self, error: str) -> None:
        """Called when the fold has stopped because the disk is full."""

    def fail(self, error: Exception) -> None:
        """Called when the store has failed."""


class Maintenance:
    def __init__(
        self, journal: JournalWriter, parts: Parts, limits: Limits, owner: Owner, sealed: Iterable[int]
    ) -> None:
        self.writing = False  # whether a batch is being written
        self.segment = journal.number  # the segment of new batches
        self.folding = Folding(parts.folder, self, sealed)
        self._journal = journal
        self._helper = parts.helper
        self._reserve = parts.reserve
        self._limits = limits
        self._owner = owner
        self._task: asyncio.Task[None] | None = None
        self._idle_ticks = 0
        self._deleted_ticks = 0  # since streams were deleted in the current segment
        self._room_checks = 0  # consecutive checks that found space on a disk that was full

    async def start(self) -> None:
        """Allocate the reserve and the file of the first segment."""
        error = await self._in_helper(self._journal.check_spare) or await self._in_helper(self._take_room)
        if error is not None:
            self.note_full(str(error))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.folding.stop()

    @property
    def is_full(self) -> bool:
        return self._owner.full is not None

    @property
    def is_behind(self) -> bool:
        """Whether writers must wait for the fold."""
        return len(self.folding.sealed) > self._limits.unfolded_segments_max

    def note_written(self) -> None:
        """Note that a batch became durable. On a full disk it is folded at once, since it frees space."""
        self._idle_ticks = 0
        self.note_sealed()
        if self.is_full or self._deletions_are_due:
            self.fold_soon()

    # Sealing

    def note_sealed(self) -> None:
        """Fold the segments that were sealed since the last call. While a batch is being written, they wait for it: the
        batch before it may not be in memory yet (`EmbeddedStore._mark_time`)."""
        if self.writing:
            return
        while self.segment < self._journal.number:
            self.folding.add(self.segment)
            self.segment += 1
            self._deleted_ticks = 0
        self.folding.wake()

    def note_changes(self, count: int) -> None:
        """Seal the current segment if it changed many streams, because they take memory until they are folded."""
        if count >= bounds.SEGMENT_CHANGES_MAX:
            self._roll()

    async def fold_all(self) -> None:
        """Seal the current segment and fold everything."""
        while self.writing:  # noqa: ASYNC110 - rare; an event would have to be set for every batch
            await asyncio.sleep(bounds.WRITING_WAIT_S)
        self._roll()
        await self.folding.join()

    def fold_soon(self) -> None:
        """Seal the current segment, unless sealed segments already wait. Folded data needs no memory."""
        if not self.writing and not self.folding.sealed and self._owner.has_unfolded:
            self._roll()

    def _roll(self) -> None:
        try:
            self._journal.roll()
        except DiskFullError as error:
            self.note_full(str(error))
        except JournalFailedError as error:
            self._owner.fail(error)
        self.note_sealed()

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except OSError as error:  # for example, no file descriptor is available
                log.warning("background work failed and is retried: %s", error)
            await asyncio.sleep(bounds.FULL_RETRY_S if self.is_full else bounds.MAINTAIN_S)

    async def _look(self) -> None:
        """Run the maintenance that is due."""
        if self.is_full:
            await self._look_for_room()
        elif not self.folding.sealed:  # the file of a folded segment becomes the next one, and is not filled with zeros
            await self._prepare()
        idle_ticks_max = max(1, round(self._limits.fold_idle_s / bounds.MAINTAIN_S))
        self._deleted_ticks += self._owner.has_deletions(self.segment)
        if self.is_full or self._deletions_are_due:
            self.fold_soon()
        elif self._idle_ticks >= idle_ticks_max and not self.writing and self._owner.has_unfolded:
            self._roll()
        self._idle_ticks += 1
        self.folding.reclaim_soon()

    @property
    def _deletions_are_due(self) -> bool:
        return self._deleted_ticks * bounds.MAINTAIN_S >= bounds.FOLD_DELETED_S

    # Called by folding

    async def folded(self, number: int) -> None:
        await self._owner.folded(number)
        self._journal.recycle(number)

    def resume(self) -> None:
        self._owner.resume()

    def note_index_full(self, reason: str, *, again: bool) -> None:
        self.note_full(reason)
        if again:
            self._owner.refuse_held(reason)

    def fail(self, error: Exception) -> None:
        self._owner.fail(error)

    # Disk space

    def note_full(self, reason: str) -> None:
        """Note that there is no disk space for a batch or the fold, and release the reserve."""
        if self._owner.full is None:
            log.error("the disk is full, only deletions are accepted: %s", reason)
        self._owner.full = reason
        self._journal.frugal = True
        self._room_checks = 0
        try:
            self._reserve.release()
        except OSError as error:
            log.warning("failed to release the reserve: %s", error)
        self.note_sealed()

    async def _look_for_room(self) -> None:
        """End the state of a full disk after some checks in a row that found room."""
        if self.folding.sealed or await self._in_helper(self._take_more_room) is not None:
            self._room_checks = 0
            return
        self._room_checks += 1
        if self._room_checks >= bounds.FULL_CHECKS and not self.folding.sealed:
            log.warning("the disk has free space again")
            self._journal.frugal = False
            self._owner.full = None

    def _take_more_room(self) -> None:
        self._take_room(segments=bounds.FULL_SEGMENTS)

    def _take_room(self, segments: int = 1) -> None:
        """Allocate the reserve and the file of the next segment, both or neither, if this many segments fit."""
        self._reserve.take()
        try:
            self._journal.check_room(segments)
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
