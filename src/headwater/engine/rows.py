"""Find the row with a SeqNo by interpolation search, in a few reads for a table of any length.

Each step estimates the position from the SeqNos at both ends of the range, reads the rows at the record boundary before
it, and narrows the range by their SeqNos. After a step that narrows the range by less than half, the next one takes the
middle. So gaps in the SeqNos of a mirror or a snapshot, and rows of very different sizes, only cost a few more reads.

A reader from the beginning gets the newest snapshot. A reader that has rows gets those after them as they were, as long
as they are there, and then from the snapshot that has replaced them, if that has all deletions since then.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRow, RowPosition, RowReply, VisibleStream
from headwater.engine.reader import DurableReader
from headwater.errors import OffsetTrimmedError
from headwater.limits import ROW_PROBE_BYTES
from headwater.log.content import ContentKind
from headwater.log.offsets import Snapshot
from headwater.log.row_framing import last_seqno_of, position_after, seqno_of
from headwater.store.pieces import Piece


class Rows:
    def __init__(self, reader: DurableReader) -> None:
        self._reader = reader

    async def find(self, message: FindRow) -> RowReply:
        """Find a row. The stream is loaded again afterwards, because it may be evicted during a long search. A search
        begins again if rows were removed during it."""
        while True:
            stream = await self._reader.find(message.path, renew=True)
            names, first = stream.names, stream.first
            try:
                reply = await self._find_range(stream, message)
            except OffsetTrimmedError:
                stream = await self._reader.find(message.path, renew=False)
                if (stream.names, stream.first) == (names, first):
                    raise
            else:
                if (await self._reader.find(message.path, renew=False)).id == stream.id:
                    return reply

    async def _find_range(self, stream: LoadedStream, message: FindRow) -> RowReply:
        reply = await self._find(stream, message.since_id)
        if message.until_id is None:
            return reply
        end = await self._end(stream, reply, message.until_id)
        return RowReply(reply.table, reply.start, reply.since_id, end)

    async def _find(self, stream: LoadedStream, since_id: int) -> RowReply:
        table = stream.info()
        if since_id < 0:
            last_rows = table.last_seqno + since_id
            if table.kind is ContentKind.MIRROR or (last_rows < table.trimmed_seqno and table.names.snapshots):
                return await self._last_rows(stream, -since_id)  # SeqNos have gaps
            since_id = max(table.trimmed_seqno, last_rows)
            if since_id == 0:
                return RowReply(table, RowPosition(table.first), 0)
        if since_id == 0:
            return RowReply(table, RowPosition(table.begin), _seqno_before_begin(table))
        if since_id < table.trimmed_seqno:
            return await self._find_in_snapshot(stream, since_id)
        if since_id >= table.last_seqno:
            start = RowPosition(table.tail)
        elif since_id == table.trimmed_seqno:
            start = RowPosition(table.first)
        else:
            span = _Range(table.first, table.trimmed_seqno, table.tail, table.last_seqno)
            start = await self._search(stream, since_id, span)
        return RowReply(table, start, since_id)

    async def _find_in_snapshot(self, stream: LoadedStream, since_id: int) -> RowReply:
        """A row before the first one that is there: only a snapshot can have it and all that became of it and of the
        rows after it."""
        table = stream.info()
        snapshot = next((one for one in table.names.snapshots if one.next == table.first), None)
        if snapshot is None or since_id < snapshot.complete_since:
            first_seqno = table.first_seqno if snapshot is None else snapshot.complete_since + 1
            raise OffsetTrimmedError(
                f"rows up to {first_seqno - 1} were removed, so there may be changes after row {since_id} that are "
                "not there any more; begin again with view=active or without since_id",
                first_seqno=first_seqno,
            )
        return RowReply(table, await self._search_snapshot(stream, snapshot, since_id), since_id)

    async def _search_snapshot(self, stream: LoadedStream, snapshot: Snapshot, since_id: int) -> RowPosition:
        span = _Range(snapshot.start, 0, snapshot.end, snapshot.seqno)
        start = await self._search(stream, since_id, span)
        return RowPosition(snapshot.next) if start.position >= snapshot.end else start

    async def _end(self, stream: LoadedStream, reply: RowReply, until_id: int) -> int:
        """Where the rows up to a SeqNo end for a reader that begins somewhere."""
        table, start = reply.table, reply.start
        if start.position < 0:
            snapshot = table.names.snapshot_at(start.position)
            if until_id < snapshot.seqno:
                end = await self._search_snapshot(stream, snapshot, until_id)
                return max(start.position, end.position)
            after = snapshot.next, snapshot.seqno
        else:
            after = table.first, table.trimmed_seqno
        if until_id >= table.last_seqno:
            return table.tail
        if until_id <= after[1]:
            return max(start.position, after[0])
        end = await self._search(stream, until_id, _Range(*after, table.tail, table.last_seqno))
        return max(start.position, end.position)

    async def _search(self, stream: LoadedStream, since_id: int, span: _Range) -> RowPosition:
        """The first row after `since_id` in a range without a snapshot's end in it; the end if there is none."""
        start, start_seqno, end, end_seqno = span
        stop = end
        halve = False
        while True:
            size = end - start
            if not size:
                return RowPosition(start)
            probe = start
            if size > ROW_PROBE_BYTES:
                share = 0.5 if halve else (since_id - start_seqno) / max(1, end_seqno - start_seqno)
                # A little before the estimate, because the rows after the position are read.
                guess = start + int(size * share) - ROW_PROBE_BYTES // 2
                probe = max(start, await self._reader.boundary(stream, start, min(max(guess, start), end - 1)))
            piece = await self._reader.piece(stream, probe, end, ROW_PROBE_BYTES)
            if seqno_of(piece.data) > since_id:
                if probe == start:
                    return RowPosition(start)
                end, end_seqno = probe, seqno_of(piece.data) - 1
            elif (last := last_seqno_of(piece.data)) > since_id:
                return _position_in(piece, since_id)
            else:
                start, start_seqno = min(piece.next, stop), last
            halve = not halve and end - start > size // 2

    async def _last_rows(self, stream: LoadedStream, count: int) -> RowReply:
        """The last rows of a table with gaps in its SeqNos: rows are counted from the end."""
        table = stream.info()
        spans = [(table.first, table.tail)]
        spans += [(one.start, one.end) for one in table.names.snapshots if one.next == table.first]
        begin = table.first
        for first, end in spans:
            reply = await self._counted_back(stream, first, end, count)
            if isinstance(reply, RowReply):
                return RowReply(table, reply.start, reply.since_id)  # without rows that were appended meanwhile
            count = reply
            begin = first if first < end else begin
        return RowReply(table, RowPosition(begin), 0 if begin < 0 else table.trimmed_seqno)

    async def _counted_back(self, stream: LoadedStream, first: int, end: int, count: int) -> RowReply | int:
        """The last rows of a range, or how many more are wanted than it has."""
        step_bytes = ROW_PROBE_BYTES
        while end > first:
            start = await self._reader.boundary(stream, first, max(first, end - step_bytes))
            pieces = await self._pieces(stream, start, end)
            for piece in reversed(pieces):
                row_count = piece.data.count(b"\n")
                if row_count >= count:
                    rows = piece.data.split(b"\n")
                    before = seqno_of(rows[row_count - count]) - 1
                    return RowReply(stream.info(), _position_in(piece, before), before)
                count -= row_count
            end, step_bytes = start, min(2 * step_bytes, 64 * ROW_PROBE_BYTES)
        return count

    async def _pieces(self, stream: LoadedStream, start: int, end: int) -> list[Piece]:
        pieces = []
        while start < end:
            pieces.append(await self._reader.piece(stream, start, end, end - start))
            start = pieces[-1].next
        return pieces


def _seqno_before_begin(table: VisibleStream) -> int:
    return 0 if table.begin < 0 else table.trimmed_seqno


class _Range(NamedTuple):
    """Rows between two positions, which are record boundaries. Every SeqNo in it is above the first one, and not above
    the last one."""

    start: int
    start_seqno: int
    end: int
    end_seqno: int


def _position_in(piece: Piece, since_id: int) -> RowPosition:
    """The position of the first row after `since_id`, which is in the piece."""
    at = piece.start + position_after(piece.data, since_id)
    record = piece.start
    for end in piece.records():
        if end.position > at:
            break
        record = end.position
    return RowPosition(record, at - record)
