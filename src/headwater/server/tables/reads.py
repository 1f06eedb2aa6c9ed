"""Reads of a table: finite or live, as lines or as server-sent events; and HEAD."""

from __future__ import annotations

from headwater.engine.follower import Extent, Pulled
from headwater.engine.messages import FindRow, ReadMore, ReadReply, RowReply, Slice, VisibleStream
from headwater.errors import StreamNotFoundError
from headwater.protocol.conditions import etag
from headwater.protocol.streams import headers
from headwater.protocol.streams.retention import retention_headers
from headwater.protocol.tables.content_type import EVENTS_TYPE, check_accept, check_accept_events
from headwater.protocol.tables.queries import RowView, TableQuery, parse_table_query
from headwater.server import bodies, compression
from headwater.server.bodies import BodyFeed, Pieces
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import (
    CLOSED,
    NO_CACHE,
    NO_STORE,
    SANDBOX,
    UNBUFFERED,
    choose_coding,
    not_modified,
)
from headwater.server.tables.active_reads import read_active
from headwater.server.tables.feeds import RowFeed, cut_rows
from headwater.server.tables.replies import VARY, described, speaking_of, table_type


async def head(service: Service, request: Request, path: str) -> Response:
    with speaking_of(path):
        table = await service.engine.info(path)
    check_accept(request.headers.get("accept"), table_type(table))
    response_headers = [
        ("content-type", table.content_type),
        *described(table),
        ("etag", _tag(table)),
        *_lasting(table),
        NO_STORE,
    ]
    if table.closed:
        response_headers.append(CLOSED)
    return Response(200, tuple(response_headers))


def _lasting(table: VisibleStream) -> Headers:
    """How long the table and its rows are kept. Some caches send GET for HEAD, so both have these headers."""
    response_headers: Headers = retention_headers(table.retention)
    if table.ttl_s is not None:
        response_headers += ((headers.TTL, str(table.ttl_s)),)
    if table.expires_ms is not None:
        response_headers += ((headers.EXPIRES_AT, headers.format_instant(table.expires_ms)),)
    return response_headers


def _tag(table: VisibleStream) -> str:
    """The entity tag of all rows."""
    since = table.mark(table.begin, 0 if table.begin < 0 else table.trimmed_seqno)
    return etag(table.version(table.tail), since, table.last_seqno, closed=table.closed)


async def read(service: Service, request: Request, path: str) -> Response:
    query = parse_table_query(request.query, request.headers.get("last-event-id"))
    with speaking_of(path):
        if query.view is RowView.ACTIVE:
            return await read_active(service, request, path, query)
        reply = await service.engine.find_row(FindRow(path, query.since_id, query.until_id))
        if query.events:
            check_accept_events(request.headers.get("accept"))
            return _events(service, request, query, reply)
        check_accept(request.headers.get("accept"), table_type(reply.table))
        if query.until_id is not None or query.timeout_s == 0 or reply.table.closed:
            return await _finite(service, request, query, reply)
    response_headers = (
        ("content-type", reply.table.content_type),
        *described(reply.table),
        NO_CACHE,
        UNBUFFERED,
        SANDBOX,
    )
    feed = RowFeed(
        service, reply.table, reply.start, since_id=reply.since_id, timeout_s=query.timeout_s, idle_s=query.idle_s
    )
    return _held(service, request, reply.table.path, Response(200, response_headers, feed=feed))


def _held(service: Service, request: Request, path: str, response: Response) -> Response:
    """A response that stays open. It counts as a live reader."""
    place = service.places.claim(service.limits, request, path)
    return response if place is None else place.hold(response)


def _events(service: Service, request: Request, query: TableQuery, reply: RowReply) -> Response:
    table = reply.table
    if request.headers.get("last-event-id") and table.closed and reply.start.position == table.tail:
        return Response(204, (*described(table), CLOSED, NO_STORE))  # stops an EventSource from reconnecting
    feed = RowFeed(
        service,
        table,
        reply.start,
        since_id=reply.since_id,
        timeout_s=query.timeout_s,
        idle_s=query.idle_s,
        events=True,
    )
    response_headers = (("content-type", EVENTS_TYPE), *described(table), NO_CACHE, UNBUFFERED, SANDBOX)
    return _held(service, request, reply.table.path, Response(200, response_headers, feed=feed))


async def _finite(service: Service, request: Request, query: TableQuery, reply: RowReply) -> Response:
    """A response that ends with an existing row: that of `until_id`, or the last one."""
    table, start = reply.table, reply.start
    ended = query.until_id is not None and query.until_id <= table.last_seqno
    until_id = table.last_seqno
    end = table.tail
    if query.until_id is not None and ended:
        until_id = query.until_id
        end = reply.end
    closed = table.closed and end == table.tail
    since = table.mark(start.record, reply.since_id)
    tag = etag(table.version(end), since, until_id, closed=closed and not ended)
    # A SeqNo does not tell a table from one that is created again, or from one before a restore, so caches must ask.
    response_headers: Headers = (*described(table), *_lasting(table), NO_CACHE, VARY, SANDBOX)
    if closed:
        response_headers += (CLOSED,)
    if (known := not_modified(request, response_headers, tag)) is not None:
        return known
    response_headers += (("content-type", table.content_type),)
    if start.position == end:
        return Response(200, (*response_headers, ("etag", tag)))
    first = await service.engine.read_more(ReadMore(table.id, start.record, end, service.limits.read_chunk_bytes))
    in_pieces = first.next < end or first.held is not None
    coding = choose_coding(service, request, tag, table.size(start.record, end) - start.skip, in_pieces=in_pieces)
    response_headers += coding.headers
    if in_pieces:
        pieces = _rows(service, start.skip, end, first)
        if coding.encoder is not None:
            pieces = bodies.encoded(pieces, coding.encoder, service.limits.compress_inline_bytes)
        return Response(200, response_headers, feed=BodyFeed(service.turns, pieces))
    body = (memoryview(first.data)[start.skip :],)
    if coding.encoding is None:
        return Response(200, response_headers, body)
    data = await compression.encode_body(body, coding.encoding, service.limits.compress_inline_bytes)
    return Response(200, response_headers, (data,))


async def _rows(service: Service, skip: int, end: int, first: ReadReply) -> Pieces:
    """The rows up to `end` in pieces, without the first bytes of the first read."""
    pulled = Pulled(
        service.engine,
        "table",
        first.stream,
        first.next,
        until=end,
        bytes_max=service.limits.read_chunk_bytes,
        extent=Extent.RANGE,
    )
    piece: Slice | None = service.engine.slices.of(first)
    del first
    pulled.follower.open()  # otherwise the table could be evicted
    try:
        while piece is not None:
            for start, stop in cut_rows(piece.data, skip):
                yield piece.data[start:stop]
            skip, position = 0, piece.next
            piece = None  # its memory can be used for the next read
            if position < end and (piece := await pulled.next()) is None:
                raise StreamNotFoundError("the table was deleted meanwhile")
    finally:
        pulled.follower.close()
