"""Large records that readers have not taken yet: each is in memory once, however many read it, and all are bounded.

A record is read whole, and it may be as large as a body. A reader that takes its answer slowly, or not at all, keeps
the record in memory meanwhile. So records that are larger than what was asked for are shared by all who read them, they
count for as long as somebody holds them, and beyond a bound further ones are refused. Few are read at a time.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from headwater.errors import OverloadedError
from headwater.limits import LARGE_READS_AT_ONCE


class LargeReads:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: WeakValueDictionary[tuple[int, int], HeldBytes] = WeakValueDictionary()
        self.held_bytes = 0
        self.turn = asyncio.Semaphore(LARGE_READS_AT_ONCE)  # of reads that may turn out large

    def find(self, stream_id: int, start: int, end: int, bytes_max: int) -> HeldBytes | None:
        """The bytes at a position, if they are held and a read would return them: one record above `bytes_max`."""
        held = self._held.get((stream_id, start))
        if held is None or len(held.data) <= bytes_max or held.next > end:
            return None
        return held

    def hold(self, stream_id: int, start: int, data: bytes) -> HeldBytes:
        """Count bytes until the returned object is no longer referenced. Use its data instead of the given data."""
        held = self._held.get((stream_id, start))
        if held is not None and len(held.data) == len(data):
            return held
        if self.held_bytes and self.held_bytes + len(data) > self._bytes_max:
            raise OverloadedError(
                f"readers have yet to take {self.held_bytes} bytes of large records; try again shortly"
            )
        held = self._held[stream_id, start] = HeldBytes(self, start + len(data), data)
        return held


class HeldBytes:
    __slots__ = ("__weakref__", "_reads", "data", "next")

    def __init__(self, reads: LargeReads, next_position: int, data: bytes) -> None:
        self._reads = reads
        self.next = next_position
        self.data = data
        reads.held_bytes += len(data)

    def __del__(self) -> None:
        self._reads.held_bytes -= len(self.data)
