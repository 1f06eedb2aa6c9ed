"""Checks a data directory that no server uses: checksums, order and references."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headwater.errors import DamagedDataError
from headwater.log.state import StreamState
from headwater.store.embedded import index, layout, locking
from headwater.store.embedded.chunks import COLUMNS, ChunkRow, decode_chunk
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.journal import CorruptJournalError, UnknownFormatError, read_segments
from headwater.store.embedded.replay import Replay

Progress = Callable[[str], None]


class CheckReport(NamedTuple):
    streams: int
    bytes: int
    chunks: int
    batches: int
    documents: int
    problems: list[str]


def check_directory(directory: Path, progress: Progress) -> CheckReport:
    if layout.format_of(directory) != layout.FORMAT:
        raise UnknownFormatError(f"{directory} has an older format; start a server on it once to upgrade it")
    lock = locking.own(directory)
    connection = index.connect(directory / layout.INDEX_NAME, write=False)
    try:
        return Checker(RealDisk(directory / layout.JOURNAL_DIR), connection, progress).run()
    finally:
        connection.close()
        lock.release()


class Checker:
    """Reads all data once."""

    def __init__(self, disk: Disk, connection: sqlite3.Connection, progress: Progress) -> None:
        self._disk = disk
        self._connection = connection
        self._reader = IndexReader(connection)
        self._progress = progress
        self._problems: list[str] = []
        self._bytes = self._chunks = self._timeline = 0

    def run(self) -> CheckReport:
        index.check_format(self._connection)
        self._progress("database")
        for (line,) in self._connection.execute("PRAGMA integrity_check"):
            if line != "ok":
                self._problems.append(f"index: {line}")
        self._progress("journal")
        replay = self._check_journal()
        self._progress("streams")
        streams = self._check_streams(replay)
        self._progress("documents")
        documents = self._check_documents(replay)
        return CheckReport(streams, self._bytes, self._chunks, replay.batches, documents, self._problems)

    def _check_journal(self) -> Replay:
        """Replay the journal over the index."""
        meta = self._reader.meta()
        replay = Replay(self._reader, meta.folded_sequence, meta.next_id, meta.streams)
        try:
            for _ in replay.run(read_segments(self._disk, meta.folded_segment, meta.folded_sequence + 1)):
                """Applying the events checks them."""
        except (CorruptJournalError, DamagedDataError) as error:
            self._problems.append(str(error))
        return replay

    # Streams

    def _check_streams(self, replay: Replay) -> int:
        forks: Counter[int] = Counter()
        count = 0
        self._timeline = self._reader.meta().timeline
        for state in self._states(replay):
            count += 1
            self._check_timelines(state)
            if state.fork is not None:
                forks[state.fork.source_id] += 1
                self._check_lineage(state, replay)
        for state in self._states(replay):
            if state.forks != forks[state.id]:
                self._problems.append(
                    f"stream {state.id} ({state.path}) records {state.forks} forks but has {forks[state.id]}"
                )
        for state in self._reader.states():
            self._check_chunks(state)
        if count != replay.streams:
            self._problems.append(f"the index records {replay.streams} streams but has {count}")
        return count

    def _states(self, replay: Replay) -> Iterator[StreamState]:
        for state in self._reader.states():
            if state.id not in replay.states:
                yield state
        yield from [state for state in replay.states.values() if state is not None]

    def _check_lineage(self, state: StreamState, replay: Replay) -> None:
        for span in state.lineage:
            ancestor = replay.state(span.id)
            if ancestor is None:
                self._problems.append(f"fork {state.path} reads stream {span.id}, which does not exist")
            elif span.end > ancestor.tail:
                self._problems.append(f"fork {state.path} reads stream {span.id} up to {span.end}, past its end")

    def _check_timelines(self, state: StreamState) -> None:
        found = [(timeline.id, timeline.start) for timeline in state.timelines]
        in_order = all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(found))
        if not in_order or (found and found[-1][1] > state.tail):
            self._problems.append(f"stream {state.path}: its timelines are out of order")
        if found and found[-1][0] > self._timeline:
            self._problems.append(f"stream {state.path} has data of timeline {found[-1][0]}, which the index lacks")

    def _check_chunks(self, state: StreamState) -> None:
        position, last_ms = state.start, 0
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM chunks WHERE stream_id = ? ORDER BY start",  # noqa: S608
            (state.id,),
        )
        for row in rows:
            found = ChunkRow(*row)
            if found.start != position:
                self._problems.append(f"stream {state.path}: bytes {position} to {found.start} are missing")
            last_ms = self._check_chunk(state, found, last_ms)
            self._chunks += 1
            self._bytes += found.size
            position = found.start + found.size
        if position != state.tail:
            self._problems.append(f"stream {state.path}: its chunks end at {position}, not at {state.tail}")

    def _check_chunk(self, state: StreamState, row: ChunkRow, last_ms: int) -> int:
        """Check a chunk after a record of time `last_ms`. Returns the time of its last record."""
        try:
            chunk = decode_chunk(row, index.untimed_ms(self._connection, state.id))
        except DamagedDataError as error:
            self._problems.append(f"stream {state.path}: {error}")
            return last_ms
        ends = [0, *chunk.ends]
        if ends[-1] != row.size or any(one >= other for one, other in pairwise(ends)):
            self._problems.append(f"stream {state.path}: the records of the chunk at {row.start} are out of order")
        times = [last_ms, *map(chunk.time, range(len(chunk.ends)))]
        if any(one > other for one, other in pairwise(times)):
            self._problems.append(f"stream {state.path}: the times of the chunk at {row.start} decrease")
        return times[-1]

    # Documents

    def _check_documents(self, replay: Replay) -> int:
        keys = {key for key, document in replay.documents.items() if document is not None}
        for row in self._connection.execute("SELECT key, data, version, checksum FROM documents"):
            try:
                document = index.decode_document(*row)
            except DamagedDataError as error:
                self._problems.append(str(error))
                continue
            if document.key not in replay.documents:
                keys.add(document.key)
        return len(keys)
