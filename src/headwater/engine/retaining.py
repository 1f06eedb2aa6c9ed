"""Retaining: finds what the retention of a stream does not keep, or a snapshot has replaced, and trims it, or by hand.

The state says that something may have to be trimmed (`StreamState.due_ms`). Which record is the first to be kept is
looked up here: by time, by position, or by the marks of messages. Streams are trimmed at record boundaries.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable

import msgspec

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRow
from headwater.engine.ranges import Ranges
from headwater.engine.reader import DurableReader
from headwater.engine.rows import Rows
from headwater.errors import InvalidOffsetError, OffsetTrimmedError, StreamGoneError, StreamNotFoundError
from headwater.limits import COUNT_STEP_BYTES
from headwater.log.commands import Command, Reply, Retain, Trim
from headwater.log.content import ROWS, ContentKind
from headwater.log.json_framing import count_messages
from headwater.log.offsets import SNAPSHOTS_FIRST, Offset
from headwater.log.retention import Counted, Retention
from headwater.log.row_framing import last_seqno_of
from headwater.store.pieces import Piece


class TrimCause(enum.StrEnum):
    RETENTION = "retention"
    REQUEST = "request"
    COMPACTION = "compaction"  # a snapshot has replaced what is trimmed


class Trims(msgspec.Struct):
    """The trims since the start."""

    counts: dict[TrimCause, int] = msgspec.field(default_factory=lambda: dict.fromkeys(TrimCause, 0))
    bytes: int = 0

    def copy(self) -> Trims:
        return Trims(dict(self.counts), self.bytes)


class Retainer:
    """Trims streams, by their retention and by hand."""

    def __init__(
        self,
        reader: DurableReader,
        ranges: Ranges,
        rows: Rows,
        now_ms: Callable[[], int],
        execute: Callable[[Command], Awaitable[Reply]],
        grace_ms: Callable[[], int | None],
    ) -> None:
        """`grace_ms`: what was too old at this time already is not trimmed by age at present."""
        self._reader = reader
        self._ranges = ranges
        self._rows = rows
        self._now_ms = now_ms
        self._execute = execute
        self._grace_ms = grace_ms
        self.trims = Trims()

    # By retention

    async def trim_due(self, path: str) -> None:
        """Trim what the retention of a stream does not keep. Nothing happens if it is deleted in the meantime."""
        await self._trim_due(path, self._grace_ms())

    async def _trim_due(self, path: str, grace_ms: int | None) -> None:
        try:
            stream = await self._reader.find(path, renew=False)
            kept, retention = stream.first, stream.retention
            if retention is not None:
                kept = await self._kept_from(stream, retention, grace_ms)
            replaced = stream.state.replaced_until(self._now_ms())
            if kept < replaced:
                await self._trim(stream, replaced, TrimCause.COMPACTION, keeps_snapshot=True)
            elif retention is not None:
                keeps_snapshot = kept == stream.first
                await self._trim(stream, kept, TrimCause.RETENTION, keeps_snapshot=keeps_snapshot, retention=retention)
        except (StreamNotFoundError, StreamGoneError, OffsetTrimmedError):
            """It was deleted, or trimmed by hand."""

    async def _kept_from(self, stream: LoadedStream, retention: Retention, grace_ms: int | None) -> int:
        """The position of the first record that the retention keeps."""
        positions = [stream.first]
        if retention.seconds is not None:
            positions.append(await self._young(stream, retention.seconds * 1000, grace_ms))
        if retention.bytes is not None:
            positions.append(await self._fitting(stream, retention.bytes))
        if retention.messages is not None:
            positions.append(min(stream.tail, stream.state.counted.excess(retention.messages)))
        return max(positions)

    async def _young(self, stream: LoadedStream, age_ms: int, grace_ms: int | None) -> int:
        """The position of the first record that is not too old."""
        if grace_ms is not None and stream.first < stream.tail:
            first = await self._reader.record_at(stream, stream.first)
            if first.at_ms < grace_ms - age_ms:
                return stream.first
        return await self._ranges.position_at(stream, self._now_ms() - age_ms)

    async def _fitting(self, stream: LoadedStream, size_bytes: int) -> int:
        """The first of the last records that fit into a number of bytes, and at least the last record."""
        first, goal = stream.first, stream.tail - size_bytes  # another trim may move the beginning meanwhile
        if goal <= first:
            return first
        last = await self._last(stream)
        if goal >= last:
            return last
        position = await self._reader.boundary(stream, first, goal)
        return position if position == goal else (await self._reader.record_at(stream, position)).position

    async def _last(self, stream: LoadedStream) -> int:
        """The position of the last record; that of the tail if there is none."""
        if stream.tail <= stream.first:
            return stream.tail
        return await self._reader.boundary(stream, stream.first, stream.tail - 1)

    # By hand

    async def trim(self, path: str, *, before: Offset | None, at_ms: int | None, seqno: int | None) -> Reply:
        """Trim a stream before an offset, a time or a row. `before` None and no time and row is its tail. What is
        trimmed already is no error, so that a request can be repeated."""
        while True:
            stream = await self._reader.find(path, renew=False)
            try:
                position = await self._position(stream, before, at_ms, seqno)
            except OffsetTrimmedError:
                position = SNAPSHOTS_FIRST
            with contextlib.suppress(OffsetTrimmedError):  # by another trim, meanwhile
                return await self._trim(stream, position, TrimCause.REQUEST)

    async def _position(self, stream: LoadedStream, before: Offset | None, at_ms: int | None, seqno: int | None) -> int:
        if seqno is not None:
            return await self._record_of(stream, seqno)
        if at_ms is not None:
            return await self._trim_position_at(stream, at_ms)
        position = self._reader.position_of(stream, before)
        await self._reader.check_boundary(stream, position)
        return position

    async def _trim_position_at(self, stream: LoadedStream, at_ms: int) -> int:
        """Where the records from a time on begin. A snapshot is kept if it has replaced one of them."""
        position = await self._ranges.position_at(stream, at_ms)
        replacing = [one for one in stream.snapshots if one.next == position == stream.first]
        return SNAPSHOTS_FIRST if replacing and at_ms <= replacing[-1].through_ms else position

    async def _record_of(self, stream: LoadedStream, seqno: int) -> int:
        """The record with a row of a table."""
        if seqno > stream.last_seqno + 1:
            raise InvalidOffsetError(f"row {seqno} is not in this table, which ends with row {stream.last_seqno}")
        if seqno <= stream.trimmed_seqno:
            return SNAPSHOTS_FIRST
        row = await self._rows.find(FindRow(stream.path, max(0, seqno - 1)))
        if stream.id != row.table.id:
            raise StreamNotFoundError("the table was deleted")
        return row.start.record

    async def _trim(
        self,
        stream: LoadedStream,
        position: int,
        cause: TrimCause,
        *,
        keeps_snapshot: bool = False,
        retention: Retention | None = None,
    ) -> Reply:
        """Trim a stream before a position, for its retention if there is one. A snapshot is before everything that can
        be trimmed."""
        if position > stream.tail:
            raise InvalidOffsetError(f"position {position} is not in this stream, which ends at {stream.tail}")
        first_ms, seqno = 0, 0
        if position < stream.first:
            position, keeps_snapshot = stream.first, True
        last = await self._last(stream)
        if position < stream.tail:
            first_ms = (await self._reader.record_at(stream, position)).at_ms
        if stream.state.kind >= ROWS:
            seqno = await self._seqno_before(stream, position)
        first = stream.first
        trim = Trim(
            path=stream.path,
            now_ms=self._now_ms(),
            stream_id=stream.id,
            position=position,
            first_ms=first_ms,
            last=last,
            seqno=seqno,
            keeps_snapshot=keeps_snapshot,
            retention=retention,
        )
        reply = await self._execute(trim)
        if (trimmed := min(position, stream.first) - first) > 0:
            self.trims.counts[cause] += 1
            self.trims.bytes += trimmed
        return reply

    async def _seqno_before(self, stream: LoadedStream, position: int) -> int:
        """The SeqNo of the last row before a record."""
        if position <= stream.first:
            return stream.trimmed_seqno
        start = await self._reader.boundary(stream, stream.first, position - 1)
        return last_seqno_of((await self._reader.piece(stream, start, position, 1)).data)

    # Changes

    async def retain(self, path: str, changes: tuple[tuple[str, int | bool | None], ...]) -> Reply:
        """Change fields of the retention of a stream, and trim what it does not keep. If messages are to be counted
        from now on, those that are there are counted first. Messages that are appended while this happens are not
        counted, so that more are kept."""
        reply = None
        while reply is None:
            stream = await self._reader.find(path, renew=False)
            with contextlib.suppress(StreamGoneError):  # another one was created at its path meanwhile
                counted = await self._counted(stream, dict(changes).get("messages"))
                reply = await self._execute(Retain(path, self._now_ms(), stream.id, changes, counted))
        # An age that is asked for now holds now.
        await self._trim_due(path, None if "seconds" in dict(changes) else self._grace_ms())
        return reply

    async def _counted(self, stream: LoadedStream, wanted: int | None) -> Counted:
        """The messages of a stream, if its retention is to count them and does not yet."""
        return Counted() if wanted is None or stream.state.counted.marks else await self._count(stream, wanted)

    async def _count(self, stream: LoadedStream, wanted: int) -> Counted:
        """Count messages from the end of a stream, until there are enough."""
        total, marks, end = 0, list[tuple[int, int]](), stream.tail
        while end > stream.first and total < wanted:
            start = await self._reader.boundary(stream, stream.first, max(stream.first, end - COUNT_STEP_BYTES))
            position, records = start, list[tuple[int, int]]()
            while position < end:
                piece = await self._reader.piece(stream, position, end, COUNT_STEP_BYTES)
                records += await asyncio.to_thread(_counts, stream.state.kind, piece)
                position = piece.next
            marks = records + marks
            total += sum(count for _, count in records)
            end = start
        counted = Counted()
        for position, count in marks:
            counted = counted.add(position, count, wanted)
        return counted


def _counts(kind: ContentKind, piece: Piece) -> list[tuple[int, int]]:
    """The position of each record of a piece, and how many messages it has."""
    counts, start = [], piece.start
    for end in piece.records():
        data = piece.data[start - piece.start : end.position - piece.start]
        counts.append((start, _count_of(kind, data)))
        start = end.position
    return counts


def _count_of(kind: ContentKind, data: bytes) -> int:
    if kind >= ROWS:
        return data.count(b"\n")
    return count_messages(data) if kind is ContentKind.JSON else 1
