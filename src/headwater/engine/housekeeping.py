"""Housekeeping: renew streams with live readers, delete expired streams, evict unused ones.

Streams that expired while the server was down are deleted only after a grace period, because the clock may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue
from headwater.engine.live import LiveReaders
from headwater.errors import HeadwaterError, LeaseLostError
from headwater.limits import Limits
from headwater.log.commands import Expire, Reply
from headwater.store.contract import Store

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
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._live = live
        self._limits = limits
        self._now_ms = now_ms
        self._expire = expire
        self._started_ms = 0
        self._task: asyncio.Task[None] | None = None

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
                await self._catalogue.evict(self._limits.streams_loaded_max, self._limits.documents_loaded_max)
                self._live.renew_all()
                await self._expire_some()
            except LeaseLostError:
                """Nothing is changed until the server may take writes again."""
            except HeadwaterError as error:
                log.warning("failed to delete expired streams, retrying: %s", error)
            except Exception:
                log.exception("housekeeping failed, retrying")

    async def _expire_some(self) -> None:
        now_ms = self._now_ms()
        in_grace = now_ms < self._started_ms + self._limits.expiry_grace_s * 1000
        since_ms = self._started_ms if in_grace else -1
        due = await self._store.due(since_ms, now_ms, bounds.EXPIRE_STREAMS_MAX)
        await asyncio.gather(*[self._expire(Expire(path, self._now_ms())) for path in due])
