"""Background work of the embedded store: fold what is sealed, keep a spare segment ready, reclaim deleted streams."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from headwater import limits as bounds
from headwater.limits import Limits
from headwater.store.embedded.folder import FoldInterruptedError, IndexFullError
from headwater.store.embedded.journal_writer import DiskFullError, JournalFailedError, JournalWriter

if TYPE_CHECKING:
    from headwater.store.embedded.store import Parts

log = logging.getLogger("headwater.store")


class Owner(Protocol):
    """The store, as maintenance sees it."""

    @property
    def has_unfolded(self) -> bool: ...

    async def folded(self, segment: int) -> None:
        """A segment is in the index."""

    def resume(self) -> None:
        """There is room for a batch that waited for the fold."""

    def refuse_held(self, error: Exception) -> None:
        """The fold cannot go on for lack of room."""

    def fail(self, error: Exception) -> None:
        """The store cannot go on."""


class Maintenance:
    def __init__(
        self, journal: JournalWriter, parts: Parts, limits: Limits, owner: Owner, sealed: Iterable[int]
    ) -> None:
        self.full: str | None = None  # why there is no room at present
        self.writing = False  # a batch is on its way to the disk
        self.segment = journal.number  # the one that batches go to
        self._journal = journal
        self._helper = parts.helper
        self._folder = parts.folder
        self._limits = limits
        self._owner = owner
        self._sealed = deque(sealed)
        self._folding: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle_ticks = 0
        self._preparing = False

    async def start(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._helper.submit(self._journal.prepare, lambda _, error: ready.set_result(None))
        await ready  # with the first segment's file; a disk that has no room for it will say so again
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._folding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_behind(self) -> bool:
        """Whether writers must wait for the fold."""
        return len(self._sealed) > self._limits.unfolded_segments_max

    def note_write(self) -> None:
        self._idle_ticks = 0

    def note_full(self, reason: str) -> None:
        self.note_sealed()
        self.full = reason
        log.error("writes are refused: %s", reason)

    def note_sealed(self) -> None:
        """Fold the segments that the journal has left."""
        while self.segment < self._journal.number:
            self._sealed.append(self.segment)
            self.segment += 1
        if self._sealed and self._folding is None:
            self._folding = asyncio.create_task(self._fold())

    async def fold_all(self) -> None:
        """Seal what was written so far and fold everything."""
        self._roll()
        while self._folding is not None:
            await asyncio.wait([self._folding])

    async def _fold(self) -> None:
        try:
            while self._sealed:
                number = self._sealed[0]
                await self._folder.fold(number)
                self._sealed.popleft()
                await self._owner.folded(number)
                self._journal.recycle(number)
                self._owner.resume()
        except IndexFullError as error:
            log.error("folding waits for room: %s", error)
            self.full = str(error)
            self._owner.refuse_held(error)
        except FoldInterruptedError as error:
            log.error("folding starts again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._owner.fail(error)
        finally:
            self._folding = None

    async def _run(self) -> None:
        idle_ticks_max = max(1, round(self._limits.fold_idle_s / bounds.MAINTAIN_S))
        while True:
            self._prepare()
            if self._idle_ticks >= idle_ticks_max and not self.writing and self._owner.has_unfolded:
                self._roll()
            self._idle_ticks += 1
            if self._sealed:
                self.note_sealed()
            elif self._folding is None:
                await self._reclaim()
            await asyncio.sleep(bounds.MAINTAIN_S)

    def _prepare(self) -> None:
        """The next segment's file, made ahead of need. While the disk is full this is also how room is found again."""
        if self._preparing:
            return
        self._preparing = True

        def prepared(_: None, error: BaseException | None) -> None:
            self._preparing = False
            if error is None and self.full:
                log.warning("there is room again")
                self.full = None
            elif isinstance(error, Exception) and not isinstance(error, OSError):
                self._owner.fail(error)

        self._helper.submit(self._journal.prepare, prepared)

    async def _reclaim(self) -> None:
        """One step after the other as long as nothing waits to be folded."""
        try:
            more = True
            while more and not self._sealed:
                more = await self._folder.reclaim(self._limits.reclaim_chunks)
        except (IndexFullError, FoldInterruptedError) as error:
            log.warning("reclaiming is tried again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._owner.fail(error)

    def _roll(self) -> None:
        try:
            self._journal.roll()
        except DiskFullError as error:
            log.warning("the journal is folded when there is room: %s", error)
        except JournalFailedError as error:
            self._owner.fail(error)
        self.note_sealed()
