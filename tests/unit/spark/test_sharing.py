"""Limits are divided so that streams advance together in append time: no row is older than one of an earlier batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.positions import byte_position
from headwater.spark.positions import StreamPlace
from headwater.spark.sharing import BatchLimits, Division, Walked

SIZE = 10  # bytes of a record, which is one message


def place(number: int) -> StreamPlace:
    return StreamPlace(f"{1:016d}_{number * SIZE:016d}")


def number_of(at: StreamPlace) -> int:
    return (byte_position(at.offset) or 0) // SIZE


class Records:
    """Streams in memory: the times of their records."""

    def __init__(self, times: Mapping[str, list[int]], *, has_times: bool = True) -> None:
        self._times = times
        self._has_times = has_times

    def walk(self, shares: Mapping[str, tuple[StreamPlace, StreamPlace, BatchLimits]]) -> dict[str, Walked]:
        walked = {}
        for path, (start, end, (records, size)) in shares.items():
            counts = [number_of(end) - number_of(start)]
            counts += [] if records is None else [records]
            counts += [] if size is None else [max(1, size // SIZE)]
            count = min(counts)
            walked[path] = Walked(place(number_of(start) + count), count, count * SIZE, lambda taken: taken // SIZE)
        return walked

    def next_times(self, places: Mapping[str, StreamPlace]) -> dict[str, int] | None:
        if not self._has_times:
            return None
        return {path: self._times[path][number_of(at)] for path, at in places.items()}

    def bytes_until(self, ends: Mapping[str, tuple[StreamPlace, int]]) -> dict[str, tuple[StreamPlace, int]]:
        distances = {}
        for path, (start, at_ms) in ends.items():
            number = bisect_left(self._times[path], at_ms)
            distances[path] = (place(number), (number - number_of(start)) * SIZE)
        return distances

    def size(self, start: StreamPlace, end: StreamPlace) -> int:
        return max(1, (number_of(end) - number_of(start)) * SIZE)


def batches(
    times: Mapping[str, list[int]], most: BatchLimits, *, has_times: bool = True
) -> list[dict[str, tuple[int, int]]]:
    """The ranges of records that each batch reads."""
    streams = Records(times, has_times=has_times)
    at = dict.fromkeys(times, 0)
    ranges = []
    while behind := {path: (place(at[path]), place(len(own))) for path, own in times.items() if at[path] < len(own)}:
        ends = Division(streams, behind, most).places()
        ranges.append({path: (at[path], number_of(end)) for path, end in ends.items()})
        at |= {path: number_of(end) for path, end in ends.items()}
    return ranges


_times = st.lists(st.integers(0, 50), max_size=40).map(sorted)


@given(times=st.dictionaries(st.sampled_from("abcde"), _times), records=st.integers(1, 30), size=st.integers(1, 300))
@settings(max_examples=300)
def test_no_row_is_older_than_one_of_an_earlier_batch(times: dict[str, list[int]], records: int, size: int) -> None:
    newest = 0
    for batch in batches(times, (records, size)):
        rows = [(at, path) for path, (begin, end) in batch.items() for at in times[path][begin:end]]
        assert 0 < len(rows) <= records
        assert len(rows) * SIZE <= max(size, SIZE)
        assert min(rows)[0] >= newest
        newest = max(rows)[0]


def test_a_busy_and_a_quiet_stream_use_the_whole_limit() -> None:
    times = {"busy": list(range(3000)), "quiet": list(range(0, 3000, 10))}
    counts = [sum(end - begin for begin, end in batch.values()) for batch in batches(times, (300, None))]
    assert sum(counts) == 3300
    assert counts[:-1] == [300] * (len(counts) - 1)


@pytest.mark.parametrize("most", [(100, None), (None, 1000)])
def test_without_times_streams_get_shares_by_what_they_have_left(most: BatchLimits) -> None:
    times = {"busy": [0] * 900, "quiet": [0] * 100}
    first = batches(times, most, has_times=False)[0]
    assert first == {"busy": (0, 90), "quiet": (0, 10)}
