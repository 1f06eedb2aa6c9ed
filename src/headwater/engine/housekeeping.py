"""Housekeeping: expired streams are deleted, unused ones are evicted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue
from headwater.errors import HeadwaterError
from headwater.limits import Limits
from headwater.log.commands import Expire, Reply
from headwater.store.contract import Store

log = logging.getLogger("headwater.engine")


class Housekeeping:
    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        limits: Limits,
        now_ms: Callable[[], int],
        expire: Callable[[Expire], Awaitable[Reply]],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._limits = limits
        self._now_ms = now_ms
        self._expire = expire
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._limits.expiry_sweep_s)
            try:
                await self._catalogue.evict(self._limits.streams_loaded_max, self._limits.documents_loaded_max)
                due = await self._store.due(self._now_ms(), bounds.EXPIRE_STREAMS_MAX)
                await asyncio.gather(*[self._expire(Expire(path, self._now_ms())) for path in due])
            except HeadwaterError as error:
                log.warning("expiring streams failed, trying again: %s", error)
            except Exception:
                log.exception("housekeeping failed, trying again")
