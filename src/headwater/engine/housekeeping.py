"""Housekeeping: renew streams with live readers, delete expired streams, evict unused ones.

Streams that expired while the server was down are deleted only after a grace period, because the clock may be wrong. So
are records that became too old meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue
from headwater.engine.live import LiveReaders
from headwater.errors import DamagedDataError, HeadwaterError, LeaseLostError
from headwater.limits import Limits
from headwater.log.commands import Expire, Reply
from headwater.store.contract import Store
from headwater.store.deadlines import MAX_ID, Deadline

log = logging.getLogger("headwater.engine")


class Housekeeping:
    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        live: LiveReaders,
        limits: Limits,
        now_ms: Callable[[], int],
        expire: Callable[[Expire], Awaitable[Reply]],
        trim: Callable[[str], Awaitable[None]],
        may_sweep: Callable[[], bool],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._live = live
        self._limits = limits
        self._now_ms = now_ms
        self._expire = expire
        self._trim = trim  # what the retention of the stream at a path, or its snapshot, does not keep
        self._may_sweep = may_sweep
        self._started_ms = 0
        self._trimmed_ms = 0  # when overdue streams were trimmed last, in the grace period
        self._task: asyncio.Task[None] | None = None
        self._making_room = asyncio.Lock()
        self._deleted = 0  # number of expired streams that were deleted

    def start(self) -> None:
        self._started_ms = self._now_ms()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._limits.expiry_sweep_s)
            try:
                await self._evict()
                await self._live.renew_all()
                if self._may_sweep():
                    await self._expire_all()
            except LeaseLostError:
                """Nothing is changed until the server may take writes again."""
            except HeadwaterError as error:
                log.warning("failed to delete expired streams, retrying: %s", error)
            except Exception:
                log.exception("housekeeping failed, retrying")

    async def _evict(self) -> None:
        await self._catalogue.evict(self._limits.streams_loaded_max, self._limits.documents_loaded_max)

    async def _expire_all(self) -> None:
        if self.grace_ms() is not None and self._now_ms() >= self._trimmed_ms + bounds.OVERDUE_TRIM_MS:
            self._trimmed_ms = self._now_ms()
            await self._trim_overdue()
        after: Deadline | None = self._first()
        steps, begun_ms = 0, self._now_ms()
        while after is not None and after[0] <= begun_ms:  # a stream that is appended to is soon due again
            after = await self._expire_some(after)
            steps += 1
            if steps % bounds.EXPIRE_EVICT_STEPS == 0:  # trimmed streams are in memory afterwards
                await self._evict()

    async def _trim_overdue(self) -> None:
        """In the grace period: trim the streams that were due before the start, as far as age is not the reason. Only
        those that are in memory can have grown since."""
        after: Deadline | None = (-1, MAX_ID)
        while after is not None:
            due = await self._store.due(after, self._started_ms, bounds.EXPIRE_STREAMS_MAX)
            for path in due.paths:
                stream = self._catalogue.newest(path)
                if stream is not None and stream.state.retention is not None:
                    with contextlib.suppress(DamagedDataError):  # the store has logged it
                        await self._trim(path)
            await asyncio.sleep(0)
            after = due.next_after

    async def make_room(self) -> bool:
        """Delete some expired streams now, because a quota refuses a new one. Returns whether any was deleted, perhaps
        by another task in the meantime."""
        before = self._deleted
        async with self._making_room:
            after: Deadline | None = self._first()
            while after is not None and self._deleted == before:
                after = await self._expire_some(after)
            return self._deleted != before

    def _first(self) -> Deadline:
        """After which deadline streams are deleted: in the grace period, those that expired since the start."""
        grace_ms = self.grace_ms()
        return (-1 if grace_ms is None else grace_ms, MAX_ID)

    def grace_ms(self) -> int | None:
        """The time of the start in the grace period, and None after it: what was due before is left alone."""
        is_over = self._now_ms() >= self._started_ms + self._limits.expiry_grace_s * 1000
        return None if is_over else self._started_ms

    async def _expire_some(self, after: Deadline) -> Deadline | None:
        """One step of a sweep. It ends when its deletions are durable, so that the rate follows what the disk and the
        other writers allow. Returns where the next step begins."""
        due = await self._store.due(after, self._now_ms(), bounds.EXPIRE_STREAMS_MAX)
        sweeps = [self._sweep(path) for path in due.paths]
        for result in await asyncio.gather(*sweeps, return_exceptions=True):
            # A stream whose row is damaged stays, and the store has logged it. Other streams expire.
            if isinstance(result, BaseException) and not isinstance(result, DamagedDataError):
                raise result
        await asyncio.sleep(0)
        self._deleted += sum(self._catalogue.newest(path) is None for path in due.paths)
        return due.next_after

    async def _sweep(self, path: str) -> None:
        await self._expire(Expire(path, self._now_ms()))
        stream = self._catalogue.newest(path)
        if stream is not None and stream.state.may_trim and not stream.state.soft_deleted:
            await self._trim(path)
