"""Every store, made for a test, with a way to bring it to rest and to open it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headwater.engine.folding import INDEX_NAME, JOURNAL_DIR, FoldWorker
from headwater.limits import Limits
from headwater.log.model import evolve
from headwater.store import index
from headwater.store.contract import Store
from headwater.store.disk import RealDisk
from headwater.store.embedded import EmbeddedStore
from headwater.store.memory import MemoryStore
from headwater.store.syncing import ThreadSyncer, best_syncer
from headwater.store.threads import ThreadRunner


class InlineFolder:
    """The fold worker without its process."""

    def __init__(self, directory: Path) -> None:
        self._worker = FoldWorker(directory)

    async def fold(self, number: int) -> None:
        answer = self._worker.handle(f'{{"fold": {number}}}')
        assert "error" not in answer, answer

    async def reclaim(self, chunks_max: int) -> bool:
        return bool(self._worker.handle(f'{{"reclaim": {chunks_max}}}')["more"])

    async def close(self) -> None:
        self._worker.close()


def embedded(directory: Path, *, threads: bool = False) -> EmbeddedStore:
    directory.mkdir(exist_ok=True)
    index.create(directory / INDEX_NAME)
    return EmbeddedStore(
        RealDisk(directory / JOURNAL_DIR),
        lambda: index.connect(directory / INDEX_NAME, write=False),
        evolve,
        limits=Limits(segment_bytes=65_536, fold_idle_s=3600),
        syncer=ThreadSyncer() if threads else best_syncer(),
        helper=ThreadRunner("spare"),
        folder=InlineFolder(directory),
        salt=lambda: 12345,
        readers=ThreadPoolExecutor(1),
    )


async def nothing(_: Store) -> Store:
    return _


async def folded(store: Store) -> Store:
    """Everything in the index, nothing in memory."""
    assert isinstance(store, EmbeddedStore)
    store._roll()
    while store._sealed:
        await asyncio.sleep(0.001)
    assert store._unfolded.empty
    return store


STORES: dict[str, tuple[Callable[[Path], Store], Callable[[Store], Awaitable[Store]]]] = {
    "memory": (lambda _: MemoryStore(), nothing),
    "embedded, from the journal": (embedded, nothing),
    "embedded, synced by a thread": (lambda path: embedded(path, threads=True), nothing),
    "embedded, folded after each commit": (embedded, folded),
}
