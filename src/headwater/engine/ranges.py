"""The records of a range, without their bytes, and positions at which it can be split."""

from __future__ import annotations

import asyncio

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRecords, FindSplits, RecordsReply, SplitsReply
from headwater.engine.reader import DurableReader, check_range
from headwater.limits import YIELD_EVERY_SPLITS
from headwater.store.contract import Store
from headwater.store.pieces import RecordEnd


class Ranges:
    def __init__(self, store: Store, reader: DurableReader) -> None:
        self._store = store
        self._reader = reader

    async def records(self, message: FindRecords) -> RecordsReply:
        stream = await self._reader.find(message.path, renew=False)
        info = stream.info()
        end = min(info.tail, self._reader.position_of(stream, message.until))
        if message.at_ms is None:
            start = self._reader.position_of(stream, message.offset, end)
            check_range(info.names, start, end)
            await self._reader.check_boundary(stream, start)
        else:
            start = await self._begin_at(stream, message.at_ms, end)
        ends: list[RecordEnd] = []
        for part in info.names.parts(start, end):
            if len(ends) < message.limit:
                ends += await self._reader.records(stream, part, message.limit - len(ends))
        return RecordsReply(info, start, end, tuple(ends))

    async def _begin_at(self, stream: LoadedStream, at_ms: int, until: int) -> int:
        """Where a reader of the records from a time on begins: with a snapshot, if it has replaced some of them."""
        position = await self.position_at(stream, at_ms)
        front = stream.names.front(until)
        is_replaced = position == stream.first and front is not None and at_ms <= front.through_ms
        return front.start if front is not None and is_replaced else position

    async def position_at(self, stream: LoadedStream, at_ms: int) -> int:
        """The position of the first record that was appended at or after a time; the tail if there is none. Snapshots
        are left out."""
        for part in stream.names.parts(stream.first, stream.tail):
            stored = self._store.position_at(part.owner, part.start, at_ms)
            position = await self._reader.own(stream, stored, part.start)
            if position is not None and position < part.end:
                return position
        return stream.tail

    async def splits(self, message: FindSplits) -> SplitsReply:
        stream = await self._reader.find(message.path, renew=False)
        info = stream.info()
        end = self._reader.position_of(stream, message.until)
        start = self._reader.position_of(stream, message.offset, end)
        check_range(info.names, start, end)
        await self._reader.check_boundary(stream, start)
        await self._reader.check_boundary(stream, end)
        places = await self._places(stream, start, max(start, end), message)
        return SplitsReply(info, start, end, tuple(places))

    async def _places(self, stream: LoadedStream, start: int, end: int, message: FindSplits) -> list[int]:
        places: list[int] = []
        last, step_bytes = start, message.step_bytes
        names, size = stream.names, stream.names.size(start, end)
        for number in range(1, (message.limit if step_bytes else message.parts - 1) + 1):
            if number % YIELD_EVERY_SPLITS == 0:
                await asyncio.sleep(0)
            goal = names.after(last, step_bytes) if step_bytes else names.after(start, size * number // message.parts)
            if goal >= end:
                break
            place = await self._reader.boundary(stream, last, goal)
            if place <= last and step_bytes:
                place = (await self._reader.piece(stream, last, end, 1)).next
            if last < place < end:
                places.append(place)
                last = place
            elif step_bytes:
                break
        return places
