"""Appends to a mirror by a follower outside the server, with the SeqNos of the source.

A request has all rows of the source after a SeqNo (`STP-After-SeqNo`), up to its last one. Rows that the mirror already
has must be identical and are skipped; the others are appended. So a request can be retried, two followers can write to
one mirror, and rows are neither repeated nor left out.
"""

from __future__ import annotations

import asyncio

import msgspec

from headwater.engine import Engine
from headwater.engine.messages import FindRow, ReadMore, RowPosition, VisibleStream
from headwater.errors import (
    ConflictError,
    EmptyBodyError,
    InvalidHeaderError,
    MirrorMismatchError,
    OffsetTrimmedError,
    SeqNoRegressionError,
)
from headwater.limits import CHANGES_MAX, LARGE_READ_BYTES, ROWS_INLINE_BYTES
from headwater.log.commands import Append, Reply
from headwater.log.content import ContentKind
from headwater.log.row_framing import position_after
from headwater.protocol.streams import headers
from headwater.protocol.tables.content_type import check_changes_type
from headwater.protocol.tables.headers import parse_after_seqno
from headwater.protocol.tables.rows import check_rows
from headwater.server.http import Request, Respond, Response
from headwater.server.service import Service
from headwater.server.streams.replies import CLOSED
from headwater.server.tables.replies import answer, last_seqno, table_type

_OF_PRODUCERS = headers.OF_APPENDS - {headers.CLOSED}


class Numbered(msgspec.Struct, frozen=True):
    """The rows of a request: those of the source after `after`, up to and with `last`."""

    after: int
    last: int
    body: bytes
    close: bool


def append(service: Service, request: Request, path: str, respond: Respond) -> None:
    fields = request.headers
    after = parse_after_seqno(fields) or 0
    close = headers.parse_closed(fields)
    if not _OF_PRODUCERS.isdisjoint(fields):
        raise InvalidHeaderError(
            "rows of a mirror have SeqNos; leave out If-Match, Stream-Seq and the headers of producers"
        )
    if not request.body and not close:
        raise EmptyBodyError("an append to a mirror needs at least one row; only a close may come without one")
    service.tasks.start(answer(path, respond, _appended(service, request, path, after, close)))


async def _appended(service: Service, request: Request, path: str, after: int, close: bool) -> Response:
    reply = await _append(service, request, path, after, close)
    response_headers = [last_seqno(reply.last_seqno)]
    return Response(204, (*response_headers, CLOSED) if reply.closed else tuple(response_headers))


async def _append(service: Service, request: Request, path: str, after: int, close: bool) -> Reply:
    table = await service.engine.info(path)
    _check_mirror(table)
    check_changes_type(request.headers.get("content-type"), table_type(table))
    body, rows_max = request.body, min(CHANGES_MAX, service.limits.messages_per_append_max)
    if len(body) > ROWS_INLINE_BYTES:
        last = await asyncio.to_thread(check_rows, body, after, rows_max)
    else:
        last = check_rows(body, after, rows_max)
    rows = Numbered(after, last, body, close)
    while True:
        try:
            return await _append_rest(service.engine, path, rows)
        except (SeqNoRegressionError, OffsetTrimmedError):
            continue  # another follower has appended rows, or rows were trimmed: compare again


async def _append_rest(engine: Engine, path: str, rows: Numbered) -> Reply:
    rows = await _comparable(engine, path, rows)
    reply = await engine.find_row(FindRow(path, rows.after))
    table = reply.table
    _check_mirror(table)
    start = reply.start if rows.after else RowPosition(table.first)
    known = await _known_bytes(engine, table, start, rows)
    if rows.close and table.last_seqno > rows.last:
        raise MirrorMismatchError(f"the mirror ends with row {table.last_seqno}; it cannot be closed after {rows.last}")
    rest = rows.body[known:]
    if not rest and not rows.close:
        return Reply(closed=table.closed, last_seqno=table.last_seqno)
    return await engine.execute(
        Append(
            path,
            engine.now_ms(),
            rest,
            table.content_type,
            close=rows.close,
            last_seqno=table.last_seqno,
            stream_id=table.id,
        )
    )


async def _comparable(engine: Engine, path: str, rows: Numbered) -> Numbered:
    """The rows without those that cannot be compared, because the mirror had them and they were trimmed."""
    trimmed_seqno = (await engine.info(path)).trimmed_seqno
    if rows.after >= trimmed_seqno:
        return rows
    body = rows.body[position_after(rows.body, trimmed_seqno) :]
    return Numbered(trimmed_seqno, max(rows.last, trimmed_seqno), body, rows.close)


def _check_mirror(table: VisibleStream) -> None:
    if table.kind is not ContentKind.MIRROR:
        raise ConflictError("the table is no mirror: it gives its rows their SeqNos; append changes to it")


async def _known_bytes(engine: Engine, table: VisibleStream, start: RowPosition, rows: Numbered) -> int:
    """The size of the part of the body that the mirror already has. An error if rows differ, or if one is missing."""
    if table.last_seqno < rows.after:
        raise MirrorMismatchError(
            f"the mirror ends with row {table.last_seqno}, so the rows from there to row {rows.after} would be missing"
        )
    known = position_after(rows.body, table.last_seqno)
    if known < len(rows.body) and table.tail - start.position != known:
        raise _differ(rows)
    position, done = start.record, -start.skip  # done: bytes of the body that were compared
    while done < known:
        read = await engine.read_more(ReadMore(table.id, position, table.tail, LARGE_READ_BYTES))
        kept = memoryview(read.data)[max(0, -done) :]
        sent = memoryview(rows.body)[max(0, done) : known]
        size = min(len(kept), len(sent))
        if not read.data or kept[:size] != sent[:size]:
            raise _differ(rows)
        position, done = read.next, done + len(read.data)
    return known


def _differ(rows: Numbered) -> MirrorMismatchError:
    return MirrorMismatchError(f"the mirror has other rows after row {rows.after} than the body")
