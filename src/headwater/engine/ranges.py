"""The records of a range, without their bytes, and positions at which it can be split."""

from __future__ import annotations

import asyncio

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRecords, FindSplits, RecordsReply, SplitsReply
from headwater.engine.reader import DurableReader
from headwater.limits import YIELD_EVERY_SPLITS
from headwater.log.offsets import owners
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
            start = self._reader.position_of(stream, message.offset)
            await self._reader.check_boundary(stream, start)
        else:
            start = await self.position_at(stream, message.at_ms)
        ends: list[RecordEnd] = []
        position = start
        for owner, stop in owners(stream.id, info.lineage, start, end):
            if len(ends) < message.limit:
                ends += await self._reader.own(
                    stream, self._store.records(owner, position, stop, message.limit - len(ends)), position
                )
            position = stop
        return RecordsReply(info, start, end, tuple(ends))

    async def position_at(self, stream: LoadedStream, at_ms: int) -> int:
        """The position of the first record that was appended at or after a time; the tail if there is none."""
        start = stream.first
        for owner, stop in owners(stream.id, stream.state.lineage, start, stream.tail):
            position = await self._reader.own(stream, self._store.position_at(owner, start, at_ms), start)
            if position is not None and position < stop:
                return position
            start = stop
        return stream.tail

    async def splits(self, message: FindSplits) -> SplitsReply:
        stream = await self._reader.find(message.path, renew=False)
        info = stream.info()
        start, end = self._reader.position_of(stream, message.offset), self._reader.position_of(stream, message.until)
        await self._reader.check_boundary(stream, start)
        await self._reader.check_boundary(stream, end)
        places = await self._places(stream, start, max(start, end), message)
        return SplitsReply(info, start, end, tuple(places))

    async def _places(self, stream: LoadedStream, start: int, end: int, message: FindSplits) -> list[int]:
        places: list[int] = []
        last, step_bytes = start, message.step_bytes
        for number in range(1, (message.limit if step_bytes else message.parts - 1) + 1):
            if number % YIELD_EVERY_SPLITS == 0:
                await asyncio.sleep(0)
            goal = last + step_bytes if step_bytes else start + (end - start) * number // message.parts
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
