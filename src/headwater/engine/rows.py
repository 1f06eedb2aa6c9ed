"""Find the row with a SeqNo by interpolation search, in a few reads for a table of any length.

Each step estimates the position from the SeqNos at both ends of the range, reads the rows at the record boundary before
it, and narrows the range by their SeqNos. After a step that narrows the range by less than half, the next one takes the
middle. So gaps in the SeqNos of a mirror, and rows of very different sizes, only cost a few more reads.
"""

from __future__ import annotations

from headwater.engine.catalogue import LoadedStream
from headwater.engine.messages import FindRow, RowPosition, RowReply
from headwater.engine.reader import DurableReader
from headwater.errors import OffsetTrimmedError
from headwater.limits import ROW_PROBE_BYTES
from headwater.log.content import ContentKind
from headwater.log.row_framing import last_seqno_of, position_after, seqno_of
from headwater.store.pieces import Piece


class Rows:
    def __init__(self, reader: DurableReader) -> None:
        self._reader = reader

    async def find(self, message: FindRow) -> RowReply:
        """Find a row. The stream is loaded again afterwards, because it may be evicted during a long search."""
        while True:
            stream = await self._reader.find(message.path, renew=True)
            reply = await self._find(stream, message.since_id)
            if (await self._reader.find(message.path, renew=False)).id == stream.id:
                return reply

    async def _find(self, stream: LoadedStream, since_id: int) -> RowReply:
        table = stream.info()
        if since_id < 0:
            if table.kind is ContentKind.MIRROR:
                return await self._last_rows(stream, -since_id)
            since_id = max(table.trimmed_seqno, table.last_seqno + since_id)
        if since_id == 0:
            since_id = table.trimmed_seqno
        if since_id < table.trimmed_seqno:
            raise OffsetTrimmedError(
                f"rows up to {table.trimmed_seqno} were trimmed, so there may be changes after row {since_id} that are "
                "not there any more; begin again with view=active or without since_id",
                first_seqno=table.first_seqno,
            )
        if since_id >= table.last_seqno:
            start = RowPosition(table.tail)
        elif since_id == table.trimmed_seqno:
            start = RowPosition(table.first)
        else:
            start = await self._search(stream, since_id, table.tail, table.last_seqno)
        return RowReply(table, start, since_id)

    async def _search(self, stream: LoadedStream, since_id: int, end: int, end_seqno: int) -> RowPosition:
        """The first row after `since_id`, which is before `end`. SeqNos before `end` are at most `end_seqno`."""
        start, start_seqno = stream.first, stream.trimmed_seqno  # a record boundary; SeqNos before it are at most this
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
                start, start_seqno = piece.next, last
            halve = not halve and end - start > size // 2

    async def _last_rows(self, stream: LoadedStream, count: int) -> RowReply:
        """The last rows of a table with gaps in its SeqNos: rows are counted from the end."""
        table = stream.info()
        first, end, step_bytes = table.first, table.tail, ROW_PROBE_BYTES
        while end > first:
            start = await self._reader.boundary(stream, first, max(first, end - step_bytes))
            pieces = await self._pieces(stream, start, end)
            for piece in reversed(pieces):
                row_count = piece.data.count(b"\n")
                if row_count >= count:
                    rows = piece.data.split(b"\n")
                    first = seqno_of(rows[row_count - count])
                    return RowReply(table, _position_in(piece, first - 1), first - 1)
                count -= row_count
            end, step_bytes = start, min(2 * step_bytes, 64 * ROW_PROBE_BYTES)
        return RowReply(table, RowPosition(first), table.trimmed_seqno)

    async def _pieces(self, stream: LoadedStream, start: int, end: int) -> list[Piece]:
        pieces = []
        while start < end:
            pieces.append(await self._reader.piece(stream, start, end, end - start))
            start = pieces[-1].next
        return pieces


def _position_in(piece: Piece, since_id: int) -> RowPosition:
    """The position of the first row after `since_id`, which is in the piece."""
    at = piece.start + position_after(piece.data, since_id)
    record = piece.start
    for end in piece.records():
        if end.position > at:
            break
        record = end.position
    return RowPosition(record, at - record)
