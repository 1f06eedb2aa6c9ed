"""The records of a range, without their bytes, and positions at which it can be split."""

from __future__ import annotations

import asyncio

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRecords, FindSplits, RecordsReply, SplitsReply
from headwater.engine.reader import Reader
from headwater.limits import YIELD_EVERY_SPLITS
from headwater.log.offsets import owners
from headwater.store.contract import Store
from headwater.store.pieces import RecordEnd


class Ranges:
    def __init__(self, store: Store, reader: Reader) -> None:
        self._store = store
        self._reader = reader

    async def records(self, asked: FindRecords) -> RecordsReply:
        stream = await self._reader.find(asked.path, renew=False)
        info = stream.info()
        end = min(info.tail, self._reader.position_of(stream, asked.until))
        if asked.at_ms is None:
            start = self._reader.position_of(stream, asked.offset)
            await self._reader.check_boundary(stream, start)
        else:
            start = await self._position_at(stream, asked.at_ms)
        found: list[RecordEnd] = []
        position = start
        for owner, stop in owners(stream.id, info.lineage, start, end):
            if len(found) < asked.limit:
                found += await self._reader.own(
                    stream, self._store.records(owner, position, stop, asked.limit - len(found))
                )
            position = stop
        return RecordsReply(info, start, end, tuple(found))

    async def _position_at(self, stream: LoadedStream, at_ms: int) -> int:
        """The position of the first record that was appended at or after a time; the tail if there is none."""
        start = 0
        for owner, stop in owners(stream.id, stream.state.lineage, 0, stream.tail):
            found = await self._reader.own(stream, self._store.position_at(owner, at_ms))
            if found is not None and found < stop:
                return max(start, found)
            start = stop
        return stream.tail

    async def splits(self, asked: FindSplits) -> SplitsReply:
        stream = await self._reader.find(asked.path, renew=False)
        info = stream.info()
        start, end = self._reader.position_of(stream, asked.offset), self._reader.position_of(stream, asked.until)
        await self._reader.check_boundary(stream, start)
        await self._reader.check_boundary(stream, end)
        places = await self._places(stream, start, max(start, end), asked)
        return SplitsReply(info, start, end, tuple(places))

    async def _places(self, stream: LoadedStream, start: int, end: int, asked: FindSplits) -> list[int]:
        found: list[int] = []
        last, step_bytes = start, asked.step_bytes
        for number in range(1, (asked.limit if step_bytes else asked.parts - 1) + 1):
            if number % YIELD_EVERY_SPLITS == 0:
                await asyncio.sleep(0)
            goal = last + step_bytes if step_bytes else start + (end - start) * number // asked.parts
            if goal >= end:
                break
            place = await self._reader.boundary(stream, last, goal)
            if place <= last and step_bytes:
                place = (await self._reader.piece(stream, last, end, 1)).next
            if last < place < end:
                found.append(place)
                last = place
            elif step_bytes:
                break
        return found
