"""A directory that is being made as a copy of another store.

Its index is written directly, in one transaction for each portion, and its journal is empty. The FORMAT file is written
last, so until then it is no data directory. `COPYING` in it says what it is a copy of.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headwater.limits import Limits
from headwater.log.moments import NEVER
from headwater.store.contract import Store
from headwater.store.copying import CopyError, Portion, Source, check_same, describe
from headwater.store.embedded import index, layout, locking, newest
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.opening import open_recovered, open_store
from headwater.store.embedded.store import EmbeddedStore

log = logging.getLogger("headwater.store")


class DirectorySource:
    """A data directory that is copied. Its lock keeps servers away."""

    def __init__(self, store: EmbeddedStore, name: str) -> None:
        self.store: Store = store
        self.what = describe(store, name)

    async def check(self) -> None:
        """Nobody can have taken the lock."""

    async def close(self) -> None:
        await self.store.close()


async def open_directory_source(directory: Path, name: str) -> DirectorySource:
    """A directory to copy. `name` identifies it, so it is the whole path."""
    layout.check_format(directory)
    store = await _started(open_store(directory, Limits()))
    return DirectorySource(store, name)


async def _started(store: EmbeddedStore) -> EmbeddedStore:
    def failed(error: BaseException) -> None:
        log.error("%s", error)

    await store.start(failed, lambda: NEVER)
    return store


class DirectoryCopy:
    """A directory to which a store is copied, locked until `close`."""

    def __init__(self, directory: Path, lock: locking.DirectoryLock) -> None:
        self._directory = directory
        self._lock = lock
        self._connection = index.connect(directory / layout.INDEX_NAME, write=True)
        self._writer = IndexWriter(self._connection)

    async def finished(self, stream_ids: Sequence[int]) -> set[int]:
        ask = self._connection.execute
        return {one for one in stream_ids if ask("SELECT 1 FROM streams WHERE id = ?", (one,)).fetchone()}

    async def end_of(self, stream_id: int) -> int | None:
        row = self._connection.execute(
            "SELECT start + size FROM chunks WHERE stream_id = ? ORDER BY start DESC LIMIT 1", (stream_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    async def put(self, portion: Portion) -> None:
        writer = self._writer
        writer.begin()
        for run, state in portion.runs:
            writer.put_bytes(run.stream_id, run.start, run.ends, run.times, run.data, state)
        writer.put_states(state.copy() for state in portion.states)
        writer.put_documents({document.key: document for document in portion.documents})
        self._connection.execute("COMMIT")

    async def put_position(self, source: Source) -> None:
        self._writer.begin()
        index.write_meta(self._connection, "timeline", source.timeline)
        meta = index.Meta(next_id=source.next_id, streams=source.streams, latest=source.latest)
        index.write_meta(self._connection, "folded", meta)
        self._connection.execute("COMMIT")

    async def opened(self) -> Store:
        """The store holds the lock until it is closed."""
        self._connection.close()
        lock, self._lock = self._lock, locking.DirectoryLock(-1)
        return await _started(open_recovered(self._directory, Limits(), lock))

    async def complete(self) -> None:
        layout.write_format(self._directory)
        (self._directory / layout.COPYING).unlink()

    async def close(self) -> None:
        self._connection.close()
        self._lock.release()


def open_directory_copy(directory: Path, source: Source) -> DirectoryCopy:
    """Begin a copy of a source, or continue one. A directory with anything else in it is refused."""
    marker = directory / layout.COPYING
    if (directory / layout.FORMAT_NAME).exists():
        raise CopyError(f"{directory} is a data directory; give one that does not exist or is empty")
    if not marker.exists() and directory.exists() and any(directory.iterdir()):
        raise CopyError(f"{directory} is not empty, and no unfinished copy; give one that does not exist or is empty")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if marker.exists():
        check_same(str(directory), _read(marker), source)
    else:
        layout.write_file(directory, layout.COPYING, msgspec.json.encode(source), directory)
    lock = locking.own(directory)
    try:
        if not (directory / layout.JOURNAL_DIR / newest.NAME).exists():
            _create(directory)
        return DirectoryCopy(directory, lock)
    except BaseException:
        lock.release()
        raise


def _create(directory: Path) -> None:
    for leftover in directory.glob(f"{layout.INDEX_NAME}*"):
        leftover.unlink()
    index.create(directory / layout.INDEX_NAME)
    (directory / layout.JOURNAL_DIR).mkdir(mode=0o700, exist_ok=True)
    newest.create(RealDisk(directory / layout.JOURNAL_DIR), index.Meta().folded)


def _read(marker: Path) -> Source:
    try:
        return msgspec.json.decode(marker.read_bytes(), type=Source)
    except msgspec.MsgspecError as error:
        raise CopyError(f"{marker} is damaged: {error}; remove the directory and copy again") from None
