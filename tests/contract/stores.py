"""All stores, for tests, and a function that finishes their background work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headwater.limits import Limits
from headwater.store.contract import Store
from headwater.store.embedded import index, layout, newest
from headwater.store.embedded.disk import Disk, RealDisk, Reserve
from headwater.store.embedded.fold_worker import open_worker
from headwater.store.embedded.folder import Reclaimed
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.store import EmbeddedStore, Parts
from headwater.store.embedded.syncing import ThreadSyncer, best_syncer
from headwater.store.embedded.threads import ThreadRunner
from headwater.store.memory import MemoryStore
from headwater.store.postgres.opening import open_store
from headwater.store.postgres.store import PostgresStore
from tests.postgres import postgres


class InlineFolder:
    """The fold worker without its process."""

    def __init__(self, directory: Path) -> None:
        self._worker = open_worker(directory)

    async def fold(self, number: int) -> int:
        answer = self._worker.handle(f"fold {number}")
        answer.check()
        return answer.added_bytes

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        answer = self._worker.handle("reclaim urgently" if urgent else "reclaim")
        answer.check()
        return answer.reclaimed

    async def close(self) -> None:
        self._worker.close()


SMALL = Limits(segment_bytes=65_536, fold_idle_s=3600, disk_reserve_bytes=65_536)


def embedded(
    directory: Path,
    *,
    threads: bool = False,
    limits: Limits = SMALL,
    make_disk: Callable[[Path], Disk] = RealDisk,
) -> EmbeddedStore:
    (directory / layout.JOURNAL_DIR).mkdir(parents=True, exist_ok=True)
    if not (directory / layout.INDEX_NAME).exists():
        index.create(directory / layout.INDEX_NAME)
        newest.create(RealDisk(directory / layout.JOURNAL_DIR), index.Meta().folded)
    disk = make_disk(directory / layout.JOURNAL_DIR)

    def connect() -> index.IndexReader:
        return index.IndexReader(index.connect(directory / layout.INDEX_NAME, write=False))

    reader = connect()
    recovered = recover(disk, reader)
    reader.close()
    parts = Parts(
        disk=disk,
        connect=connect,
        syncer=ThreadSyncer() if threads else best_syncer(),
        helper=ThreadRunner("spare"),
        writer=ThreadRunner("write"),
        folder=InlineFolder(directory),
        readers=ThreadPoolExecutor(1),
        salt=lambda: 12345,
        reserve=Reserve(make_disk(directory), limits.disk_reserve_bytes),
    )
    return EmbeddedStore(parts, recovered, limits)


async def nothing(_: Store) -> None:
    """The store has no background work."""


async def folded(store: Store) -> None:
    """Fold everything into the index, so that nothing is in memory."""
    assert isinstance(store, EmbeddedStore)
    await store.fold()
    assert not store.has_unfolded


async def in_postgres(_: Path) -> Store:
    """A store in an empty database."""
    return await open_store(postgres().clean_database())


async def packed(store: Store) -> None:
    """Pack everything into chunks."""
    assert isinstance(store, PostgresStore)
    await store.pack()


def _opening(make: Callable[[Path], Store]) -> Callable[[Path], Awaitable[Store]]:
    async def opened(directory: Path) -> Store:
        return make(directory)

    return opened


STORES: dict[str, tuple[Callable[[Path], Awaitable[Store]], Callable[[Store], Awaitable[None]]]] = {
    "memory": (_opening(lambda _: MemoryStore()), nothing),
    "embedded, from the journal": (_opening(embedded), nothing),
    "embedded, synced by a thread": (_opening(lambda path: embedded(path, threads=True)), nothing),
    "embedded, folded after each commit": (_opening(embedded), folded),
    "postgres": (in_postgres, nothing),
    "postgres, packed after each commit": (in_postgres, packed),
}
