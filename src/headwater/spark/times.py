"""The times when messages were appended, from the record times of a range."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.client import RecordTimes, Stream
from headwater.errors import ProtocolError
from headwater.spark.positions import StreamRange, byte_position

Numbers = npt.NDArray[np.int64]
_UNKNOWN = np.iinfo(np.int64).min


class AppendTimes:
    """The times of one range, fetched in pages as its messages are read. Empty on servers without record times."""

    def __init__(self, stream: Stream, part: StreamRange) -> None:
        self._pages = iter(_pages(stream, part))
        self._ends: Numbers = np.empty(0, np.int64)
        self._times: Numbers = np.array([_UNKNOWN])  # one more than `_ends`, for messages after the last end

    def column(self, starts: Numbers) -> pa.Array:
        """The times of the messages that start at these bytes, which must increase from call to call."""
        if len(starts):
            self._reach(starts)
        times = self._times[np.searchsorted(self._ends, starts, side="right")]
        return pa.array(times, pa.timestamp("ms", tz="UTC"), mask=times == _UNKNOWN)

    def _reach(self, starts: Numbers) -> None:
        ends, times = [self._ends[self._ends > starts[0]]], [self._times[:-1][self._ends > starts[0]]]
        reached = ends[0][-1] if len(ends[0]) else -1
        while reached <= starts[-1] and (page := next(self._pages, None)) is not None:
            first = byte_position(page.offset)
            if first is None or not page.ends:
                continue
            ends.append(np.array(page.ends, np.int64) + first)
            times.append(np.array(page.times_ms, np.int64))
            reached = ends[-1][-1]
        self._ends, self._times = np.concatenate(ends), np.concatenate([*times, [_UNKNOWN]])


def _pages(stream: Stream, part: StreamRange) -> Iterator[RecordTimes]:
    """Request the next page while the messages of the current one are read."""
    if not part.exact:
        return
    until = None if part.end.skip else part.end.offset
    pages = iter(stream.record_times(offset=part.start.offset, until=until))
    try:
        page: RecordTimes | None = next(pages)
    except ProtocolError:
        return
    with ThreadPoolExecutor(1) as ahead:
        while page is not None and page.continues_at(until) is not None:
            coming = ahead.submit(next, pages, None)
            yield page
            page = coming.result()
        if page is not None:
            yield page
