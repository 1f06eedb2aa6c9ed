"""Divides the limits of a batch among streams, so that the streams advance together in append time.

Spark drops rows that are older than the watermark, which follows the newest row that it has seen in any stream. If a
quiet stream were read ahead of a busy one, rows of the busy stream would be dropped as late. So a batch ends in all
streams at about the same time: no stream is read past the first record that another one has to leave to the next batch.

A batch is divided in rounds. In a round each stream gets a share of the rest in proportion to the bytes that it has
left, and is then cut back to the horizon: the time of the earliest record that no stream has read. What was cut back is
divided again. Where times are not known (other servers), one round divides in proportion to the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from headwater import limits
from headwater.spark.positions import StreamPlace

BatchLimits = Sequence[int | None]  # records, bytes


class Walked(msgspec.Struct, frozen=True):
    """How far one stream can be read, and what that counts for."""

    end: StreamPlace
    records: int
    size: int
    records_in: Callable[[int], int]  # the first bytes


class StreamSurvey(Protocol):
    """What the division asks about streams. Each call is for many streams at a time."""

    def walk(self, shares: Mapping[str, tuple[StreamPlace, StreamPlace, BatchLimits]]) -> dict[str, Walked]:
        """How far each stream can be read within its share, which is at least one message."""

    def next_times(self, places: Mapping[str, StreamPlace]) -> dict[str, int] | None:
        """The time of the first unread record of each stream, in ms; None if the server has no times."""

    def bytes_until(self, ends: Mapping[str, tuple[StreamPlace, int]]) -> dict[str, tuple[StreamPlace, int]]:
        """For each stream, the place of the first record at or after a time in ms, and the bytes up to it."""

    def size(self, start: StreamPlace, end: StreamPlace) -> int:
        """The bytes between two places, at least 1."""


class Division:
    """One batch. `behind` has the place and the end of each stream with unread data."""

    def __init__(
        self, streams: StreamSurvey, behind: Mapping[str, tuple[StreamPlace, StreamPlace]], most: BatchLimits
    ) -> None:
        self._streams = streams
        self._behind = behind
        self._left: list[int | None] = list(most)
        self._places = {path: start for path, (start, _) in behind.items()}
        self._has_advanced = False

    def places(self) -> dict[str, StreamPlace]:
        """The end of the batch in each stream that is read."""
        times = self._streams.next_times(self._places) if self._behind else {}
        if times is None:
            self._round(sorted(self._behind, key=lambda path: -self._bytes_left(path)), None)
        else:
            self._in_time(times)
        return {path: place for path, place in self._places.items() if place != self._behind[path][0]}

    def _in_time(self, times: dict[str, int]) -> None:
        candidates = set(times)
        for _ in range(limits.SPARK_SHARING_ROUNDS_MAX if times else 0):
            order = sorted(candidates, key=lambda path: (times[path], path))
            advanced = self._round(order, times)
            for path in advanced:
                if self._is_complete(path):
                    del times[path]
            candidates = {path for path in advanced if path in times}
            if times:
                first = min(times.values())
                candidates |= {path for path, at in times.items() if at <= first}
            if not candidates or not advanced or any(left == 0 for left in self._left):
                return

    def _round(self, order: Sequence[str], times: dict[str, int] | None) -> set[str]:
        """Read some streams further, those first in `order`. Returns those that advanced."""
        walked = self._walk(order)
        if times is not None and walked:
            walked = self._cut_back(walked, times)
        for path, one in walked.items():
            self._places[path] = one.end
        self._left = _minus(self._left, walked.values())
        self._has_advanced |= bool(walked)
        return set(walked)

    def _walk(self, order: Sequence[str]) -> dict[str, Walked]:
        """Walk some streams at a time, because each takes at least one message, which may be larger than its share."""
        walked: dict[str, Walked] = {}
        left, total = self._left, sum(self._bytes_left(path) for path in order)
        while order and not any(one == 0 for one in left):
            several = min(limits.SPARK_REQUESTS_AT_ONCE, len(order) // 4, *(one for one in left if one is not None))
            served, order = order[: max(1, several)], order[max(1, several) :]
            parts = {path: self._bytes_left(path) / total for path in served}
            shares = {path: [one and max(1, int(one * part)) for one in left] for path, part in parts.items()}
            step = self._streams.walk(
                {path: (self._places[path], self._behind[path][1], share) for path, share in shares.items()}
            )
            for path, one in step.items():
                fits = all(
                    most is None or used <= most for used, most in zip((one.records, one.size), left, strict=True)
                )
                if fits or not (walked or self._has_advanced):  # a message larger than the limit is a batch of its own
                    walked[path] = one
                    left = _minus(left, [one])
            total -= sum(self._bytes_left(path) for path in served)
        return walked

    def _cut_back(self, walked: dict[str, Walked], times: dict[str, int]) -> dict[str, Walked]:
        """End every stream at the horizon. The stream with the earliest unread record is always before it."""
        open_ends = {path: one.end for path, one in walked.items() if not one.end.is_at(self._behind[path][1])}
        after = self._streams.next_times(open_ends) or {}
        unread = {**{path: at for path, at in times.items() if path not in walked}, **after}
        if not unread:
            return walked
        horizon = min(unread.values())
        cuts = self._streams.bytes_until({path: (self._places[path], horizon + 1) for path in walked})
        kept: dict[str, Walked] = {}
        for path, one in walked.items():
            cut, size = cuts[path]
            if size >= one.size:
                kept[path] = one
                times |= {path: after[path]} if path in after else {}
            elif size > 0:
                kept[path] = msgspec.structs.replace(one, end=cut, records=one.records_in(size), size=size)
        cut_back = {path: one.end for path, one in kept.items() if one is not walked[path]}
        times |= self._streams.next_times(cut_back) or {}
        return kept

    def _bytes_left(self, path: str) -> int:
        return self._streams.size(self._places[path], self._behind[path][1])

    def _is_complete(self, path: str) -> bool:
        return self._places[path].is_at(self._behind[path][1])


def _minus(left: BatchLimits, walked: Iterable[Walked]) -> list[int | None]:
    """What is left of the limits."""
    used = [(one.records, one.size) for one in walked]
    return [
        None if most is None else max(0, most - sum(one[number] for one in used)) for number, most in enumerate(left)
    ]


def moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
