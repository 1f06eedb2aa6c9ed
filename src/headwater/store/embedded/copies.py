"""A directory that is being made as a copy of another store.

Its index is written directly, in one transaction for each portion, and its journal is empty. The FORMAT file is written
last, so until then it is no data directory. `COPYING` in it says what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headwater.limits import Limits
from headwater.store.copying import CopyError, Portion, Source
from headwater.store.embedded import index, layout, locking, newest
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.opening import open_recovered
from headwater.store.embedded.store import EmbeddedStore


class DirectoryCopy:
    """A directory to which a store is copied, locked until `close`."""

    def __init__(self, directory: Path, lock: locking.DirectoryLock) -> None:
        self._directory = directory
        self._lock = lock
        self._connection = index.connect(directory / layout.INDEX_NAME, write=True)
        self._writer = IndexWriter(self._connection)

    def finished(self, stream_ids: Sequence[int]) -> set[int]:
        ask = self._connection.execute
        return {one for one in stream_ids if ask("SELECT 1 FROM streams WHERE id = ?", (one,)).fetchone()}

    def end_of(self, stream_id: int) -> int | None:
        row = self._connection.execute(
            "SELECT start + size FROM chunks WHERE stream_id = ? ORDER BY start DESC LIMIT 1", (stream_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    def put(self, portion: Portion) -> None:
        writer = self._writer
        writer.begin()
        for run, state in portion.runs:
            writer.put_bytes(run.stream_id, run.start, run.ends, run.times, run.data, state)
        writer.put_states(state.copy() for state in portion.states)
        writer.put_documents({document.key: document for document in portion.documents})
        self._connection.execute("COMMIT")

    def put_position(self, source: Source) -> None:
        self._writer.begin()
        index.write_meta(self._connection, "timeline", source.timeline)
        meta = index.Meta(next_id=source.next_id, streams=source.streams, latest=source.latest)
        index.write_meta(self._connection, "folded", meta)
        self._connection.execute("COMMIT")

    def opened(self, limits: Limits) -> EmbeddedStore:
        """The copy as a store, to compare it. It holds the lock until it is closed."""
        self._connection.close()
        lock, self._lock = self._lock, locking.DirectoryLock(-1)
        return open_recovered(self._directory, limits, lock)

    def complete(self) -> None:
        """Make it a data directory."""
        layout.write_format(self._directory)
        (self._directory / layout.COPYING).unlink()

    def close(self) -> None:
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
        _check_same(directory, _read(marker), source)
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


def _check_same(directory: Path, before: Source, source: Source) -> None:
    if before.name != source.name:
        raise CopyError(f"{directory} is an unfinished copy of {before.name}, not of {source.name}; give another one")
    if before != source:
        raise CopyError(
            f"{source.name} was changed after the unfinished copy in {directory} began; remove that directory and copy "
            "again"
        )
