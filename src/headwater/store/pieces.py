"""Runs of records, and the pieces that are read from them.

A store keeps a stream as runs of whole records. A run has the end and time of each record. A read returns a piece: its
bytes, their position, the position of the next read, and the end and time of each record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from headwater.limits import ARRAY_RECORDS_MIN


class UnalignedReadError(ValueError):
    """A read that starts inside a record."""


class RecordEnd(NamedTuple):
    """The end of a record in its stream, and the time of its append."""

    position: int
    at_ms: int


class Run(Protocol):
    """Consecutive whole records of a stream, from position `start` on. `ends` are relative to `start`."""

    @property
    def start(self) -> int: ...

    @property
    def ends(self) -> Sequence[int]: ...

    def slice(self, first: int, stop: int) -> bytes:
        """Bytes between two positions relative to `start`."""

    def time(self, index: int) -> int:
        """When the record with this index was appended."""


# A run, the index of its first record, the index after its last one, and the end of the last one, which a fork may have
# cut. A run may grow, but its records do not change.
RecordRange: TypeAlias = tuple[Run, int, int, int]


class Piece(msgspec.Struct, frozen=True):
    data: bytes
    start: int
    next: int  # position of the next read
    ranges: tuple[RecordRange, ...] = ()

    def records(self) -> Iterator[RecordEnd]:
        """The end and time of each record. A record that a fork or the piece cuts ends at the cut."""
        for run, first, last, end in self.ranges:
            for index in range(first, last):
                yield RecordEnd(min(run.start + run.ends[index], end), run.time(index))


class ShiftedRun(NamedTuple):
    """A run of another stream, at its positions in the stream that is read."""

    run: Run
    shift: int

    @property
    def start(self) -> int:
        return self.run.start + self.shift

    @property
    def ends(self) -> Sequence[int]:
        return self.run.ends

    def slice(self, first: int, stop: int) -> bytes:
        return self.run.slice(first, stop)

    def time(self, index: int) -> int:
        return self.run.time(index)


def shifted(piece: Piece, shift: int) -> Piece:
    """A piece of another stream, at its positions in the stream that is read."""
    if not shift:
        return piece
    ranges = tuple([(ShiftedRun(run, shift), first, last, end + shift) for run, first, last, end in piece.ranges])
    return Piece(piece.data, piece.start + shift, piece.next + shift, ranges)


def join(pieces: Sequence[Piece]) -> Piece:
    """Join consecutive pieces."""
    if len(pieces) == 1:
        return pieces[0]
    ranges = tuple(range_ for piece in pieces for range_ in piece.ranges)
    return Piece(b"".join([piece.data for piece in pieces]), pieces[0].start, pieces[-1].next, ranges)


def read_runs(runs: Iterable[Run], start: int, end: int, bytes_max: int) -> Piece:
    """Read whole records of consecutive runs, the first of which contains `start`: as many as fit, at least one."""
    parts: list[bytes] = []
    ranges: list[RecordRange] = []
    position = start
    for run in runs:
        first, last, stop = _fitting(run, position, end, bytes_max)
        size = run.start + stop - position
        if parts and size > bytes_max:
            break
        parts.append(run.slice(position - run.start, stop))
        ranges.append((run, first, last, run.start + stop))
        position += size
        bytes_max -= size
        if bytes_max <= 0 or position >= end or stop < run.ends[-1]:
            break
    return Piece(parts[0] if len(parts) == 1 else b"".join(parts), start, position, tuple(ranges))


def _fitting(run: Run, position: int, end: int, bytes_max: int) -> tuple[int, int, int]:
    """The records of a run that fit: the first index, the index after the last, and their end relative to the run."""
    ends = run.ends
    start = position - run.start
    first = bisect_right(ends, start)
    if start and (first == 0 or ends[first - 1] != start):
        raise UnalignedReadError("no record starts at this position")
    stop = min(end - run.start, ends[-1] if ends else 0)
    if stop - start > bytes_max:
        stop = min(stop, ends[max(first, bisect_right(ends, start + bytes_max, lo=first) - 1)])
    stop = max(start, stop)
    return first, bisect_left(ends, stop, lo=first) + 1 if stop > start else first, stop


def list_runs(runs: Iterable[Run], start: int, end: int, limit: int) -> list[RecordEnd]:
    """The records of consecutive runs, the first of which contains `start`."""
    ends: list[RecordEnd] = []
    position = start
    for run in runs:
        first, last, stop = _fitting(run, position, end, end - position)
        last = min(last, first + limit - len(ends))
        begin = run.start
        positions = [min(begin + one, end) for one in run.ends[first:last]]
        ends += map(RecordEnd, positions, map(run.time, range(first, last)))
        position = run.start + stop
        if len(ends) >= limit or position >= end:
            break
    return ends


def boundary_in(run: Run, position: int) -> int:
    """The last record boundary of the run at or before a position."""
    before = bisect_right(run.ends, position - run.start)
    return run.start + (run.ends[before - 1] if before else 0)


def position_at(run: Run, start: int, at_ms: int) -> int | None:
    """The position of the first record of the run, at or after `start`, that was appended at or after a time."""
    first = bisect_left(run.ends, start - run.start + 1) if start > run.start else 0
    index = bisect_left(range(len(run.ends)), at_ms, lo=first, key=run.time)
    if index >= len(run.ends):
        return None
    return run.start + (run.ends[index - 1] if index else 0)


class GrowingRun(msgspec.Struct, eq=False, gc=False):
    """Records of one stream, in memory. There are many of these, so the garbage collector does not look at them. It
    looks at arrays but not at tuples of numbers, so a run has arrays only if it is long."""

    start: int
    ends: tuple[int, ...] | array[int] = ()
    _times: tuple[int, ...] | array[int] = ()
    _data: bytearray = msgspec.field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    def append(self, data: bytes, at_ms: int) -> None:
        self._data += data
        ends, times = self.ends, self._times
        if isinstance(ends, tuple) or isinstance(times, tuple):
            self.ends, self._times = (*ends, len(self._data)), (*times, at_ms)
            if len(self.ends) >= ARRAY_RECORDS_MIN:
                self.ends, self._times = array("Q", self.ends), array("Q", self._times)
        else:
            ends.append(len(self._data))
            times.append(at_ms)

    def slice(self, first: int, stop: int) -> bytes:
        return bytes(memoryview(self._data)[first:stop])

    def time(self, index: int) -> int:
        return self._times[index]

    def after(self, position: int) -> GrowingRun:
        """A run of the records from a position on. Readers may still have this one."""
        cut = position - self.start
        index = bisect_right(self.ends, cut)
        ends = tuple([end - cut for end in self.ends[index:]])
        times = tuple(self._times[index:])
        if len(ends) >= ARRAY_RECORDS_MIN:
            return GrowingRun(position, array("Q", ends), array("Q", times), self._data[cut:])
        return GrowingRun(position, ends, times, self._data[cut:])


class SingleRecord(msgspec.Struct, gc=False):
    """One record, in memory: a large one, which is not copied, or the only one of a stream. As
    `GrowingRun`, without garbage collection."""

    start: int
    data: bytes
    at_ms: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def ends(self) -> tuple[int]:
        return (len(self.data),)

    def slice(self, first: int, stop: int) -> bytes:
        return self.data[first:stop]  # the same object for the whole record

    def time(self, index: int) -> int:
        return self.at_ms

    def grown(self, data: bytes, at_ms: int) -> GrowingRun:
        """A run of this record and the next one."""
        joined = bytearray(self.data)
        joined += data
        return GrowingRun(self.start, (len(self.data), len(joined)), (self.at_ms, at_ms), joined)
