"""Runs of whole records: bytes that follow each other and where each record ends."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from headwater.store.contract import UnalignedReadError


def stop_of(ends: Sequence[int], start: int, end: int, bytes_max: int) -> int:
    """Where a read from `start` stops: at `end` if that is near enough, else after as many records as fit.

    All positions are relative to the beginning of the run.
    """
    first = bisect_right(ends, start)
    if start and (first == 0 or ends[first - 1] != start):
        raise UnalignedReadError("no record starts there")
    stop = min(end, ends[-1] if ends else 0)
    if stop - start > bytes_max:
        last = bisect_right(ends, start + bytes_max, lo=first) - 1
        stop = min(stop, ends[max(first, last)])
    return max(start, stop)


def boundary_of(ends: Sequence[int], position: int) -> int:
    """The last place at or before a position where a record begins or ends, all relative to the run's beginning."""
    before = bisect_right(ends, position)
    return ends[before - 1] if before else 0


class Readable(Protocol):
    """A run of whole records that knows where in its stream it ends."""

    @property
    def end(self) -> int: ...

    def read(self, start: int, end: int, bytes_max: int) -> bytes: ...


def gather(runs: Iterable[Readable], start: int, end: int, bytes_max: int) -> bytes:
    """Whole records of runs that follow each other, the first of which holds `start`: as many as fit, at least one."""
    parts: list[bytes] = []
    for run in runs:
        part = run.read(start, end, bytes_max)
        if parts and len(part) > bytes_max:
            break
        parts.append(part)
        start += len(part)
        bytes_max -= len(part)
        if bytes_max <= 0 or start < run.end or start >= end:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Run:
    """Records of one stream, growing in memory."""

    __slots__ = ("data", "ends", "start")

    def __init__(self, start: int) -> None:
        self.start = start  # in the stream
        self.data = bytearray()
        self.ends = array("Q")

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def append(self, data: bytes) -> None:
        self.data += data
        self.ends.append(len(self.data))

    def boundary(self, position: int) -> int:
        return self.start + boundary_of(self.ends, position - self.start)

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        first = start - self.start
        stop = stop_of(self.ends, first, end - self.start, bytes_max)
        return bytes(memoryview(self.data)[first:stop])
