"""The records of a range as columns: where each ends and when it was stored, to look up those of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.flows import RecordInfo, RecordTimes
from headwater.errors import ProtocolError

Numbers = npt.NDArray[np.int64]
TIME = pa.timestamp("ms", tz="UTC")
_UNKNOWN = np.iinfo(np.int64).min
_DIGITS = 16  # of both parts of an offset
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Numbers = np.empty(0, np.int64)


class RecordPart(msgspec.Struct, frozen=True, eq=False):
    """Consecutive records: the bytes at which they start and end, their times, and the first part of their offsets."""

    starts: Numbers
    ends: Numbers
    times_ms: Numbers
    ids: Numbers


def has_one_id(page: RecordTimes) -> bool:
    """Whether all offsets of a page have the same first part. Those of a fork or a restored stream may not."""
    return _parsed(page.offset)[0] == _parsed(page.next_offset)[0] or not page.ends


def part_of_times(page: RecordTimes) -> RecordPart:
    first_id, first = _parsed(page.offset)
    ends = np.array(page.ends, np.int64) + first
    starts = np.concatenate([[first], ends[:-1]])[: len(ends)]
    return RecordPart(starts, ends, np.array(page.times_ms, np.int64), np.full(len(ends), first_id, np.int64))


def part_of_records(records: Sequence[RecordInfo]) -> RecordPart:
    """The same from records with their own offsets."""
    begins = [_parsed(record.offset) for record in records]
    return RecordPart(
        _numbers(position for _, position in begins),
        _numbers(_parsed(record.next_offset)[1] for record in records),
        _numbers((record.time - _EPOCH) // timedelta(milliseconds=1) for record in records),
        _numbers(number for number, _ in begins),
    )


class Records:
    """The records of a range, added in parts while its messages are read."""

    def __init__(self) -> None:
        self._starts = self._ends = self._times = self._ids = _NOTHING

    @property
    def reached(self) -> int:
        """The end of the last record; -1 before the first one."""
        return int(self._ends[-1]) if len(self._ends) else -1

    def add(self, part: RecordPart) -> None:
        self._starts = np.concatenate([self._starts, part.starts])
        self._ends = np.concatenate([self._ends, part.ends])
        self._times = np.concatenate([self._times, part.times_ms])
        self._ids = np.concatenate([self._ids, part.ids])

    def forget(self, position: int) -> None:
        """Drop the records that end at a position or before it."""
        kept = slice(int(np.searchsorted(self._ends, position, side="right")), None)
        self._starts, self._ends = self._starts[kept], self._ends[kept]
        self._times, self._ids = self._times[kept], self._ids[kept]

    def times(self, positions: Numbers) -> pa.Array:
        """The times of the records with these bytes; null after the last record."""
        known = np.concatenate([self._times, [_UNKNOWN]])
        times = known[np.searchsorted(self._ends, positions, side="right")]
        return pa.array(times, TIME, mask=times == _UNKNOWN)

    def offsets(self, positions: Numbers) -> pa.Array:
        """The offsets at which the records with these bytes begin. All of them must be known."""
        numbers = np.searchsorted(self._ends, positions, side="right")
        ids, starts = _padded(self._ids[numbers]), _padded(self._starts[numbers])
        return pc.binary_join_element_wise(ids, starts, "_")

    def ends(self, first: int, last: int) -> Numbers:
        """The ends of the records after one byte and up to another."""
        return self._ends[(self._ends > first) & (self._ends <= last)]


def _numbers(numbers: Iterable[int]) -> Numbers:
    return np.fromiter(numbers, np.int64)


def _padded(numbers: Numbers) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), _DIGITS, "0")


def _parsed(offset: str) -> tuple[int, int]:
    number, _, position = offset.partition("_")
    if not (number.isdigit() and position.isdigit()):
        raise ProtocolError(f"the offset of a record is two numbers, got {offset[:80]!r}")
    return int(number), int(position)
