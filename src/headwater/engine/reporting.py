"""Reports for operators: all measurements of the engine, and the busiest streams.

Rates are the difference of two samples of the streams in memory. Appends are not counted one by one, and samples are
only taken while a client requests them.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable

import msgspec

from headwater import limits
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.retaining import Trims
from headwater.log.offsets import Offset
from headwater.log.retention import Retention
from headwater.measures import Histogram
from headwater.store.contract import StoreReport


class EngineReport(msgspec.Struct, frozen=True):
    streams: int
    streams_loaded: int
    streams_retained: int  # of the loaded ones, those with a retention
    documents_loaded: int
    trims: Trims
    commit_sizes: Histogram  # records per batch
    commit_seconds: Histogram
    commit_failures: int
    outdated_records: int  # decided again, because another server was faster
    committed_bytes: int
    backlog_records: int
    backlog_bytes: int
    subscribers: dict[str, int]  # subscribed live readers, by kind
    waiting: int  # reads that wait for the next change
    refusing: str | None  # why writes are refused; None if they are accepted
    full: str | None  # why the disk is full; None if it is not
    store: StoreReport


class BusyStream(msgspec.Struct, frozen=True):
    path: str
    size: int  # bytes that are there, inherited ones too
    readers: int
    bytes_per_s: float
    appends_per_s: float
    first: Offset  # where it begins
    first_seqno: int  # the same of a table
    trimmed_bytes: int  # before its first record
    retention: Retention | None


class Busiest(msgspec.Struct, frozen=True):
    """The busiest streams in memory, ordered by rate and then size, or by size and then rate."""

    streams: list[BusyStream]
    loaded: int
    over_s: float  # the time between the two samples; 0.0 for the first sample, which has no rates


class _Seen(msgspec.Struct, frozen=True, gc=False):
    tail: int
    version: int


class _Look(msgspec.Struct):
    at_s: float
    seen: dict[int, _Seen]  # by id


class Sampler:
    def __init__(self, catalogue: Catalogue, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._before: _Look | None = None
        self._last: _Look | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()

    async def busiest(self, limit: int, *, by_size: bool) -> Busiest:
        """Sample all streams in memory, in parts. Concurrent requests share a sample."""
        async with self._turn:
            now_s = self._clock()
            if self._last is None or now_s - self._last.at_s >= limits.TOP_LOOK_S:
                look = _Look(now_s, {})
                for count, stream in enumerate(self._catalogue.all_visible(), 1):
                    look.seen[stream.id] = _Seen(stream.tail, stream.state.version)
                    if count % limits.TOP_STREAMS_PER_TURN == 0:
                        await asyncio.sleep(0)
                self._before, self._last = self._last, look
            self._forget_later()
            return await self._ranked(limit, by_size=by_size)

    async def _ranked(self, limit: int, *, by_size: bool) -> Busiest:
        before, last = self._before, self._last
        over_s = 0.0 if before is None or last is None else last.at_s - before.at_s
        best: list[tuple[tuple[float, float], int, BusyStream]] = []
        streams = self._catalogue.all_visible()
        for count, stream in enumerate(streams, 1):
            if count % limits.TOP_STREAMS_PER_TURN == 0:
                await asyncio.sleep(0)
            rates = self._rates(stream, over_s)
            size = stream.size
            rank = (float(size), rates[0]) if by_size else (rates[0], float(size))
            if len(best) < limit or rank > best[0][0]:
                info = stream.info()
                bytes_per_s, appends_per_s = rates
                busy = BusyStream(
                    path=stream.path,
                    size=size,
                    readers=stream.readers,
                    bytes_per_s=bytes_per_s,
                    appends_per_s=appends_per_s,
                    first=info.first_offset,
                    first_seqno=info.first_seqno,
                    trimmed_bytes=info.first,
                    retention=stream.retention,
                )
                (heapq.heappush if len(best) < limit else heapq.heapreplace)(best, (rank, stream.id, busy))
        return Busiest([busy for _, _, busy in sorted(best, reverse=True)], len(streams), over_s)

    def _rates(self, stream: LoadedStream, over_s: float) -> tuple[float, float]:
        """Bytes and appends per second of a stream; 0 if it was not in the previous sample."""
        if self._before is None or self._last is None or not over_s:
            return 0.0, 0.0
        first, then = self._before.seen.get(stream.id), self._last.seen.get(stream.id)
        if first is None or then is None:
            return 0.0, 0.0
        # The version can decrease: a batch that does not fit on the disk is rolled back.
        return max(0, then.tail - first.tail) / over_s, max(0, then.version - first.version) / over_s

    def _forget_later(self) -> None:
        """Drop the sample if it is not requested for a while, because rates over a long time are not useful."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(limits.TOP_KEPT_S, self._forget)

    def _forget(self) -> None:
        self._before = self._last = None
