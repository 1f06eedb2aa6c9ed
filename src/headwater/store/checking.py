"""Checking a data directory that nobody is using, and salvaging what is left of a damaged journal."""

from __future__ import annotations

import sqlite3
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from headwater.log.values import Created, StreamState
from headwater.store.disk import Disk
from headwater.store.fold import Evolve
from headwater.store.index import IndexReader, check_format
from headwater.store.journal import (
    CorruptJournalError,
    read_intact,
    read_segment,
    read_segments,
    seal_tail,
    segment_name,
    segment_numbers,
)

Progress = Callable[[str], None]

_states = msgspec.msgpack.Decoder(StreamState)


class Report(NamedTuple):
    streams: int
    bytes: int
    chunks: int
    batches: int
    problems: list[str]


class Checker:
    """Reads everything once: checksums, order, and that whatever is referred to exists."""

    def __init__(self, disk: Disk, connection: sqlite3.Connection, evolve: Evolve, progress: Progress) -> None:
        self._disk = disk
        self._connection = connection
        self._reader = IndexReader(connection)
        self._evolve = evolve
        self._progress = progress
        self._problems: list[str] = []
        self._newer: dict[int, StreamState | None] = {}  # what the journal makes of streams
        self._bytes = self._chunks = self._batches = 0

    def run(self) -> Report:
        check_format(self._connection)
        self._progress("database")
        for (line,) in self._connection.execute("PRAGMA integrity_check"):
            if line != "ok":
                self._problems.append(f"index: {line}")
        self._progress("journal")
        self._check_journal()
        self._progress("streams")
        streams = self._check_streams()
        return Report(streams, self._bytes, self._chunks, self._batches, self._problems)

    # The journal

    def _check_journal(self) -> None:
        meta = self._reader.meta()
        try:
            for segment in read_segments(self._disk, meta.folded_segment, meta.folded_sequence + 1):
                for batch in segment.batches:
                    self._batches += 1
                    for record in batch.records():
                        for event in record:
                            self._newer[event.id] = self._evolve(
                                None if isinstance(event, Created) else self._state(event.id), event
                            )
        except CorruptJournalError as error:
            self._problems.append(str(error))
        except ValueError as error:
            self._problems.append(f"journal: {error}")

    def _state(self, stream_id: int) -> StreamState | None:
        if stream_id in self._newer:
            return self._newer[stream_id]
        return self._reader.by_id(stream_id)

    # The index

    def _check_streams(self) -> int:
        forks: Counter[int] = Counter()
        count = 0
        for state in self._all_states():
            count += 1
            if state.fork is not None:
                forks[state.fork.source_id] += 1
                self._check_lineage(state)
        for state in self._all_states():
            if state.forks != forks[state.id]:
                self._problems.append(
                    f"stream {state.id} ({state.path}) counts {state.forks} forks and has {forks[state.id]}"
                )
        for (row,) in self._connection.execute("SELECT state FROM streams ORDER BY id"):
            self._check_chunks(_states.decode(row))
        return count

    def _all_states(self) -> Iterator[StreamState]:
        for (row,) in self._connection.execute("SELECT state FROM streams"):
            state = _states.decode(row)
            if state.id not in self._newer:
                yield state
        yield from [state for state in self._newer.values() if state is not None]

    def _check_lineage(self, state: StreamState) -> None:
        for span in state.lineage:
            ancestor = self._state(span.id)
            if ancestor is None:
                self._problems.append(f"fork {state.path} reads stream {span.id}, which does not exist")
            elif not ancestor.start <= span.start <= span.end <= ancestor.tail:
                self._problems.append(f"fork {state.path} reads past the bytes of {ancestor.path}")

    def _check_chunks(self, state: StreamState) -> None:
        position = state.start
        rows = self._connection.execute(
            "SELECT start, size, checksum, ends, data FROM chunks WHERE stream_id = ? ORDER BY start", (state.id,)
        )
        for start, size, checksum, ends, data in rows:
            self._chunks += 1
            self._bytes += size
            if start != position:
                self._problems.append(f"stream {state.path}: bytes {position} to {start} are missing")
            if len(data) != size or zlib.crc32(data) != checksum:
                self._problems.append(f"stream {state.path}: the chunk at {start} is damaged")
            bounds = array("I", ends)
            if not bounds or bounds[-1] != size or any(one >= other for one, other in pairwise(bounds)):
                self._problems.append(f"stream {state.path}: the records of the chunk at {start} are out of order")
            position = start + size
        if position != state.tail:
            self._problems.append(f"stream {state.path}: its chunks end at {position}, not at {state.tail}")


class Salvage(NamedTuple):
    kept_batches: int
    dropped_bytes: int
    set_aside: list[str]


def salvage(disk: Disk, folded: int, sequence: int, salt: Callable[[], int]) -> Salvage:
    """Keep the journal up to the first damage and set the rest aside, under names that are not read again."""
    numbers = [number for number in segment_numbers(disk) if number > folded]
    kept, dropped, aside = 0, 0, []
    expected = folded + 1
    for number in numbers:
        name = segment_name(number)
        data = _bytes_of(disk, name)
        intact = read_intact(name, data, number) if number == expected else None
        follows = intact is not None and (not intact.batches or intact.batches[0].sequence == sequence + kept + 1)
        if intact is not None and follows and (intact.sealed or _is_end(name, data, number, numbers)):
            kept += len(intact.batches)
            expected += 1
            continue
        expected = -1  # nothing after this counts
        _set_aside(disk, name, data)
        aside.append(f"{name}.damaged")
        if intact is not None and follows and intact.batches:
            kept += len(intact.batches)
            dropped += len(data) - intact.end
            seal_tail(disk, intact, intact.batches[-1].sequence + 1, salt)
        else:
            dropped += len(data)
            disk.remove(name)
    disk.sync_names()
    return Salvage(kept, dropped, aside)


def _is_end(name: str, data: bytes, number: int, numbers: list[int]) -> bool:
    """Whether a segment without a seal is the newest and broken off as a crash leaves it."""
    try:
        return number == numbers[-1] and read_segment(name, data, number, last=True) is not None
    except CorruptJournalError:
        return False


def _bytes_of(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read()
    finally:
        file.close()


def _set_aside(disk: Disk, name: str, data: bytes) -> None:
    """A copy first: the segment itself is replaced only when the copy is safe."""
    copy = disk.open(f"{name}.damaged")
    try:
        copy.truncate(0)
        copy.write(0, data)
        copy.sync()
    finally:
        copy.close()
    disk.sync_names()
