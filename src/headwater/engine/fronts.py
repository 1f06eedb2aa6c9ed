"""The front of a stream that a snapshot can replace: up to which record, and what a snapshot has to know of it."""

from __future__ import annotations

from headwater.engine.messages import FindFront, FrontReply
from headwater.engine.ranges import Ranges
from headwater.engine.reader import DurableReader
from headwater.log.content import ROWS
from headwater.log.row_framing import last_seqno_of


class Fronts:
    def __init__(self, reader: DurableReader, ranges: Ranges) -> None:
        self._reader = reader
        self._ranges = ranges

    async def find(self, message: FindFront) -> FrontReply:
        """The records of a stream that were appended before a time, or all of them."""
        reader = self._reader
        stream = await reader.find(message.path, renew=False)
        info = stream.info()
        end = info.tail if message.at_ms is None else await self._ranges.position_at(stream, message.at_ms)
        if end <= info.first:
            return FrontReply(info, info.begin, max(end, info.first))
        last = await reader.boundary(stream, info.first, end - 1)
        through_ms = (await reader.record_at(stream, last)).at_ms
        seqno = 0
        if info.kind >= ROWS:
            seqno = last_seqno_of((await reader.piece(stream, last, end, 1)).data)
        return FrontReply(info, info.begin, end, through_ms, seqno)
