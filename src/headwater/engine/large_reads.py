"""Bounded memory for large records that are being sent to readers.

A record is read as a whole and can be as large as a request body. It stays in memory until the reader has received it,
which can take long. So a record that exceeds the requested size is shared by all its readers, its bytes count while any
of them holds it, and above a limit further reads of large records are refused. Few are read at the same time.
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
        self.turn = asyncio.Semaphore(LARGE_READS_AT_ONCE)  # limits concurrent reads of large records

    def find(self, stream_id: int, start: int, end: int, bytes_max: int) -> HeldBytes | None:
        """The record at a position, if it is larger than `bytes_max` and already in memory."""
        held = self._held.get((stream_id, start))
        if held is None or len(held.data) <= bytes_max or start + len(held.data) > end:
            return None
        return held

    def forget(self) -> None:
        """Find none of those any more that are held now: other bytes may be at their positions."""
        self._held.clear()

    def hold(self, stream_id: int, start: int, next_position: int, data: bytes) -> HeldBytes:
        """Count bytes until the returned object is no longer referenced. Use its data instead of the given data."""
        held = self._held.get((stream_id, start))
        if held is not None and len(held.data) == len(data):
            return held
        if self.held_bytes and self.held_bytes + len(data) > self._bytes_max:
            raise OverloadedError(f"{self.held_bytes} bytes of large records are being sent; try again later")
        held = self._held[stream_id, start] = HeldBytes(self, next_position, data)
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
