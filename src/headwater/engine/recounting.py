"""Counting again the streams of a shared store, and what those below prefixes and of tokens use.

Each server counts what it writes, and others delete what it has created. Without more, the count of one server rises
until it refuses everything, while that of another one falls below zero and refuses nothing. What is written during a
count may be counted twice or not at all, until the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue
from headwater.errors import HeadwaterError
from headwater.log.quotas import Usage, counted_streams
from headwater.store.contract import SharedStore, Store
from headwater.tasks import Tasks

log = logging.getLogger("headwater.engine")


async def counted(store: Store, usage: Usage) -> Usage:
    """What the prefixes and owners of a usage use, by the store."""
    count = usage.empty()
    prefixes = [f"{kind}{prefix}" for prefix in usage.prefixes.outermost for kind in bounds.PATH_KINDS]
    for prefix in [""] if usage.counts_owners else prefixes:
        after: str | None = ""
        while after is not None:
            states, after = await store.page(prefix, after, bounds.LIST_PAGE_MAX)
            for state in states:
                count.add(state.path, state.owner, counted_streams(state.path), state.size)
    return count


class Recounter:
    def __init__(self, store: SharedStore, catalogue: Catalogue, usage: Usage | None) -> None:
        self._store = store
        self._catalogue = catalogue
        self._usage = usage
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()

    async def _run(self) -> None:
        took_s = 0.0
        while True:
            await asyncio.sleep(max(bounds.RECOUNT_S, took_s / bounds.RECOUNT_SHARE))
            began_s = time.monotonic()
            try:
                await self._recount()
            except HeadwaterError as error:
                log.info("streams could not be counted again: %s", error)
            except Exception:
                log.exception("streams could not be counted again")
            took_s = time.monotonic() - began_s

    async def _recount(self) -> None:
        await self._store.recount()
        self._catalogue.count = self._store.streams
        if self._usage:
            self._usage.take(await counted(self._store, self._usage))
