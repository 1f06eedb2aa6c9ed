"""Checks a data directory that no server uses: checksums, order and references."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headwater.errors import DamagedDataError
from headwater.log.state import StreamState
from headwater.store.embedded import index, layout
from headwater.store.embedded.chunks import COLUMNS, ChunkRow, decode_chunk
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.index import IndexReader, StreamRow
from headwater.store.embedded.journal import CorruptJournalError
from headwater.store.embedded.newest import read_segments
from headwater.store.embedded.reclaiming import Garbage
from headwater.store.embedded.replay import Replay

Progress = Callable[[str], None]


class CheckReport(NamedTuple):
    streams: int
    bytes: int
    chunks: int
    batches: int
    documents: int
    problems: list[str]
    is_cut: bool = False  # the journal is damaged or incomplete; `check --salvage` keeps what is before the damage


def check_directory(directory: Path, progress: Progress) -> CheckReport:
    with layout.owned_index(directory, write=False) as opened:
        return Checker(RealDisk(directory / layout.JOURNAL_DIR), opened, progress).run()


class Checker:
    """Reads all data once."""

    def __init__(self, disk: Disk, connection: sqlite3.Connection, progress: Progress) -> None:
        self._disk = disk
        self._connection = connection
        self._reader = IndexReader(connection)
        self._progress = progress
        self._problems: list[str] = []
        self._is_cut = False
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
        self._check_other_rows()
        self._progress("documents")
        documents = self._check_documents(replay)
        return CheckReport(streams, self._bytes, self._chunks, replay.batches, documents, self._problems, self._is_cut)

    def _check_journal(self) -> Replay:
        """Replay the journal over the index."""
        meta = self._reader.meta()
        replay = Replay(self._reader.rows, meta)
        try:
            for _ in replay.run(read_segments(self._disk, meta.folded)):
                """Applying the events checks them."""
        except (CorruptJournalError, DamagedDataError) as error:
            self._problems.append(str(error))
            self._is_cut = isinstance(error, CorruptJournalError)
        return replay

    # Streams

    def _check_streams(self, replay: Replay) -> int:
        damaged = self._check_stream_rows(replay)
        forks: Counter[int] = Counter()
        count = damaged
        self._timeline = self._reader.meta().timeline
        for state in self._states(replay):
            count += 1
            self._check_timelines(state)
            if state.fork is not None:
                forks[state.fork.source_id] += 1
                self._check_lineage(state, replay)
            forks.update([snapshot.id for snapshot in state.snapshots])
            self._check_snapshots(state, replay)
        for state in self._states(replay):
            if state.forks != forks[state.id] and not damaged:  # a damaged row may be that of a fork
                self._problems.append(
                    f"stream {state.id} ({state.path}) records {state.forks} forks but has {forks[state.id]}"
                )
        for state in self._folded_states():
            self._check_chunks(state)
        if count != replay.streams:
            self._problems.append(f"the index records {replay.streams} streams but has {count}")
        return count

    def _check_stream_rows(self, replay: Replay) -> int:
        """Read each stream as the server does. Returns the number of damaged rows that are not deleted."""
        damaged = 0
        for (stream_id,) in self._connection.execute("SELECT id FROM streams ORDER BY id").fetchall():
            try:
                state = self._reader.by_id(stream_id)
                if state is None or self._reader.by_path(state.path) is None:
                    self._problems.append(f"stream {stream_id} is not found by its path")
            except DamagedDataError as error:
                self._problems.append(str(error))
                damaged += not self._is_readable(stream_id) and replay.states.get(stream_id, True) is not None
        return damaged

    def _is_readable(self, stream_id: int) -> bool:
        """Whether the row of a stream is intact. Its producers may be damaged."""
        try:
            return index.stream_row(self._connection, "id", stream_id) is not None
        except DamagedDataError:
            return False

    def _folded_states(self) -> Iterator[StreamState]:
        """The states of intact rows."""
        for row in self._connection.execute(f"SELECT {index.STREAM_COLUMNS} FROM streams ORDER BY id"):  # noqa: S608
            with contextlib.suppress(DamagedDataError):  # reported before
                yield index.decode_stream(StreamRow(*row))

    def _states(self, replay: Replay) -> Iterator[StreamState]:
        for state in self._folded_states():
            if state.id not in replay.states:
                yield state
        yield from [state for state in replay.states.values() if state is not None]

    def _check_other_rows(self) -> None:
        """Rows of streams that do not exist: garbage, and what a damaged key left behind."""
        for row in self._connection.execute("SELECT * FROM garbage"):
            try:
                Garbage(*row).check()
            except DamagedDataError as error:
                self._problems.append(str(error))
        self._check_garbage()
        for table in ("chunks", "producers", "expired_producers"):
            rows = self._connection.execute(
                f"SELECT DISTINCT stream_id FROM {table} WHERE stream_id NOT IN (SELECT id FROM streams) "  # noqa: S608
                f"AND stream_id NOT IN (SELECT stream_id FROM garbage WHERE high = {index.EVERYTHING})"
            )
            for (stream_id,) in rows:
                self._problems.append(f"rows of {table} belong to stream {stream_id}, which does not exist")

    def _check_garbage(self) -> None:
        """Rows of deleted streams are not read any more, but their damage shows that the disk fails."""
        decoders: tuple[tuple[str, str, Callable[..., object]], ...] = (
            ("chunks", COLUMNS, lambda *row: decode_chunk(ChunkRow(*row))),
            ("producers", "*", lambda *row: index.decode_producer(index.ProducerRow(*row))),
            ("expired_producers", "*", lambda *row: index.decode_expired(index.ExpiredRow(*row))),
        )
        for table, columns, decode in decoders:
            rows = self._connection.execute(
                f"SELECT {columns} FROM {table} WHERE stream_id IN "  # noqa: S608
                f"(SELECT stream_id FROM garbage WHERE high = {index.EVERYTHING})"
            )
            for row in rows:
                try:
                    decode(*row)
                except DamagedDataError as error:
                    self._problems.append(f"{error}; the stream is deleted, so nothing is lost")

    def _check_lineage(self, state: StreamState, replay: Replay) -> None:
        for span in state.lineage:
            try:
                ancestor = replay.state(span.id)
            except DamagedDataError:
                continue  # reported before
            if ancestor is None:
                self._problems.append(f"fork {state.path} reads stream {span.id}, which does not exist")
            elif span.end > ancestor.tail:
                self._problems.append(f"fork {state.path} reads stream {span.id} up to {span.end}, past its end")

    def _check_snapshots(self, state: StreamState, replay: Replay) -> None:
        for snapshot in state.snapshots:
            try:
                hidden = replay.state(snapshot.id)
            except DamagedDataError:
                continue  # reported before
            if hidden is None:
                self._problems.append(f"stream {state.path} begins with snapshot {snapshot.id}, which does not exist")
            elif hidden.tail != snapshot.end - snapshot.start:
                self._problems.append(f"stream {state.path} begins with snapshot {snapshot.id}, which has another size")

    def _check_timelines(self, state: StreamState) -> None:
        timelines = [(timeline.id, timeline.start) for timeline in state.timelines]
        in_order = all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(timelines))
        if not in_order or (timelines and timelines[-1][1] > state.tail):
            self._problems.append(f"stream {state.path}: its timelines are out of order")
        if timelines and timelines[-1][0] > self._timeline:
            self._problems.append(f"stream {state.path} has data of timeline {timelines[-1][0]}, which the index lacks")

    def _check_chunks(self, state: StreamState) -> None:
        position, last_ms = state.start, 0
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM chunks WHERE stream_id = ? ORDER BY start",  # noqa: S608
            (state.id,),
        )
        for row in rows:
            chunk = ChunkRow(*row)
            if chunk.start != position and not state.is_unread(position, chunk.start):
                self._problems.append(f"stream {state.path}: bytes {position} to {chunk.start} are missing")
            last_ms = self._check_chunk(state, chunk, last_ms)
            self._chunks += 1
            self._bytes += chunk.size
            position = chunk.start + chunk.size
        if position != state.tail and not state.is_unread(position, state.tail):
            self._problems.append(f"stream {state.path}: its chunks end at {position}, not at {state.tail}")

    def _check_chunk(self, state: StreamState, row: ChunkRow, last_ms: int) -> int:
        """Check a chunk after a record of time `last_ms`. Returns the time of its last record."""
        try:
            chunk = decode_chunk(row)
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
        for row in self._connection.execute("SELECT * FROM documents").fetchall():
            try:
                document = index.decode_document(index.DocumentRow(*row))
            except DamagedDataError as error:
                self._problems.append(str(error))
                continue
            if document.key not in replay.documents:
                keys.add(document.key)
        return len(keys)
