"""The times when messages were appended, from the record times of a range."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from headwater.client import RecordTimes, Stream
from headwater.client.columns.records import Numbers, Records, part_of
from headwater.errors import MissingExtensionError
from headwater.positions import byte_position
from headwater.spark.positions import StreamRange


class AppendTimes:
    """The times of one range, fetched in pages as its messages are read. Empty on servers without record times."""

    def __init__(self, stream: Stream, part: StreamRange) -> None:
        self._pages = iter(_pages(stream, part))
        self._records = Records(byte_position(part.start.offset) or 0)

    def column(self, starts: Numbers) -> pa.Array:
        """The times of the messages that start at these bytes, which must increase from call to call."""
        if len(starts):
            self._reach(starts)
        return self._records.times(starts)

    def _reach(self, starts: Numbers) -> None:
        self._records.forget(int(starts[0]))
        while self._records.reached <= starts[-1] and (page := next(self._pages, None)) is not None:
            if byte_position(page.offset) is not None and page.ends:
                self._records.add(part_of(page))


def _pages(stream: Stream, part: StreamRange) -> Iterator[RecordTimes]:
    """Request the next page while the messages of the current one are read."""
    if not part.exact:
        return
    until = None if part.end.skip else part.end.offset
    pages = iter(stream.record_times(offset=part.start.offset, until=until))
    try:
        page: RecordTimes | None = next(pages)
    except MissingExtensionError:
        return
    with ThreadPoolExecutor(1) as ahead:
        while page is not None and page.continues_at(until) is not None:
            coming = ahead.submit(next, pages, None)
            yield page
            page = coming.result()
        if page is not None:
            yield page
