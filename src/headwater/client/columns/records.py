"""The records of a range as columns: where each ends and when it was stored, to look up those of messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.flows import RecordInfo, RecordTimes
from headwater.errors import ProtocolError
from headwater.positions import NUMBERED

Numbers = npt.NDArray[np.int64]
TIME = pa.timestamp("ms", tz="UTC")
_UNKNOWN = np.iinfo(np.int64).min
_DIGITS = 16  # of both parts of an offset
_NOTHING: Numbers = np.empty(0, np.int64)


class RecordPart(msgspec.Struct, frozen=True, eq=False):
    """Consecutive records: their sizes and times, and the two numbers of the offset at which each begins."""

    sizes: Numbers
    times_ms: Numbers
    ids: Numbers
    positions: Numbers


def has_one_id(page: RecordTimes) -> bool:
    """Whether all offsets of a page have the same first part. Those of a fork, of a restored stream and of one that
    begins with a snapshot may not."""
    return not page.ends or _parsed(page.offset)[0] == _parsed(page.next_offset)[0]


def part_of(page: RecordTimes, records: Sequence[RecordInfo] | None = None) -> RecordPart:
    """The records of a page. They are also given one by one if their offsets have different first parts."""
    ends = np.array(page.ends, np.int64)
    sizes = np.diff(ends, prepend=0)
    times = np.array(page.times_ms, np.int64)
    if records is None:
        number, first = _parsed(page.offset)
        return RecordPart(sizes, times, np.full(len(ends), number, np.int64), first + ends - sizes)
    if len(records) != len(ends):
        raise ProtocolError("the server gave different numbers of records for the same range")
    begins = np.array([_parsed(record.offset) for record in records], np.int64)
    return RecordPart(sizes, times, begins[:, 0], begins[:, 1])


class Records:
    """The records of a range, added in parts while its messages are read.

    Its bytes are counted from the beginning of the range, because the positions in offsets leap where a snapshot ends.
    """

    def __init__(self, base: int = 0) -> None:
        """`base`: the number of the first byte."""
        self.reached = base  # the end of the last record
        self._ends = self._times = self._ids = self._positions = _NOTHING

    def add(self, part: RecordPart) -> None:
        ends = self.reached + np.cumsum(part.sizes)
        self.reached = int(ends[-1]) if len(ends) else self.reached
        self._ends = np.concatenate([self._ends, ends])
        self._times = np.concatenate([self._times, part.times_ms])
        self._ids = np.concatenate([self._ids, part.ids])
        self._positions = np.concatenate([self._positions, part.positions])

    def forget(self, position: int) -> None:
        """Drop the records that end at a byte or before it."""
        kept = slice(int(np.searchsorted(self._ends, position, side="right")), None)
        self._ends, self._times = self._ends[kept], self._times[kept]
        self._ids, self._positions = self._ids[kept], self._positions[kept]

    def times(self, positions: Numbers) -> pa.Array:
        """The times of the records with these bytes; null after the last record."""
        known = np.concatenate([self._times, [_UNKNOWN]])
        times = known[np.searchsorted(self._ends, positions, side="right")]
        return pa.array(times, TIME, mask=times == _UNKNOWN)

    def offsets(self, positions: Numbers) -> pa.Array:
        """The offsets at which the records with these bytes begin. All of them must be known."""
        numbers = np.searchsorted(self._ends, positions, side="right")
        ids, positions = _padded(self._ids[numbers]), _padded(self._positions[numbers])
        return pc.binary_join_element_wise(ids, positions, "_")

    def ends(self, first: int, last: int) -> Numbers:
        """The ends of the records after one byte and up to another."""
        return self._ends[(self._ends > first) & (self._ends <= last)]


def _padded(numbers: Numbers) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), _DIGITS, "0")


def _parsed(offset: str) -> tuple[int, int]:
    match = NUMBERED.fullmatch(offset)
    if match is None:
        raise ProtocolError(f"the offset of a record is two numbers, got {offset[:80]!r}")
    return int(match[1]), int(match[2])
