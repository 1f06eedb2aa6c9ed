"""Reads of a stream: catch-up, long-poll, server-sent events, and HEAD."""

from __future__ import annotations

import contextlib

import msgspec

from headwater.engine.messages import Read, ReadReply, VisibleStream
from headwater.errors import HeadwaterError
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING
from headwater.protocol.conditions import etag
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.reads import Live, ReadQuery, cache_control, next_cursor, parse_read, wrap
from headwater.protocol.streams.retention import retention_headers
from headwater.server import compression
from headwater.server.bodies import BodyFeed, cut
from headwater.server.composing import accepted_posts
from headwater.server.http import Headers, Request, Response, waiting
from headwater.server.service import Service
from headwater.server.streams.feeds import EventFeed
from headwater.server.streams.replies import (
    CLOSED,
    NO_CACHE,
    NO_STORE,
    SANDBOX,
    UNBUFFERED,
    UP_TO_DATE,
    VARY,
    choose_coding,
    not_modified,
    offset_text,
)


async def head(service: Service, request: Request, path: str) -> Response:
    stream = await service.engine.info(path)
    tag = etag(stream.version(stream.tail), stream.mark(stream.begin), stream.tail, closed=stream.closed)
    return Response(200, (*_described(stream), ("etag", tag)))


def _described(stream: VisibleStream) -> Headers:
    """The tail and the configuration of a stream. HEAD and a GET with `offset=now` have all of these headers, because
    some caches send GET for HEAD."""
    response_headers = [
        ("content-type", stream.content_type),
        (headers.NEXT_OFFSET, offset_text(stream, stream.tail)),
        (headers.FIRST_OFFSET, format_offset(stream.first_offset)),
        *retention_headers(stream.retention),
        accepted_posts(stream.content_type),
        UP_TO_DATE,
        NO_STORE,
    ]
    if stream.ttl_s is not None:
        response_headers.append((headers.TTL, str(stream.ttl_s)))
    if stream.expires_ms is not None:
        response_headers.append((headers.EXPIRES_AT, headers.format_instant(stream.expires_ms)))
    if stream.closed:
        response_headers.append(CLOSED)
    return tuple(response_headers)


async def read(service: Service, request: Request, path: str) -> Response:
    query = parse_read(request.query)
    limits = service.limits
    if query.live is Live.SSE:
        last_event_id = request.headers.get("last-event-id")  # of an EventSource that reconnects
        offset = parse_offset(last_event_id) if last_event_id else query.offset
        reply = await service.engine.read(Read(path, offset, query.until, limits.sse_chunk_bytes))
        if last_event_id and reply.stream.closed and reply.at_tail and not reply.data:
            return _nothing_more(reply)
        place = service.places.claim(limits, request, path)
        response = _feed(service, query, reply)
        return response if place is None else place.hold(response)
    wait_s = limits.long_poll_s if query.live is Live.LONG_POLL else 0.0
    if wait_s:
        request.route = waiting(request.route)
    message = Read(path, query.offset, query.until, limits.read_chunk_bytes, wait_s)
    with (wait_s and service.places.claim(limits, request, path)) or contextlib.nullcontext():
        reply = await service.engine.read(message)
        if reply.start < 0:
            reply = await _with_tail(service, message, reply)
    response, encoding = _piece(service, request, query, reply)
    if encoding is not None:
        data = await compression.encode_body(response.body, encoding, limits.compress_inline_bytes)
        response.body = (data,)
    if reply.held is not None and response.body:
        response.feed, response.body = BodyFeed(service.turns, cut(response.body), reply.held), ()
    return response


async def _with_tail(service: Service, message: Read, reply: ReadReply) -> ReadReply:
    """Go on after the end of a snapshot in the same response, if there is room. A client that reads one response only
    has the present state then, and not that of the last compaction, if both are small. A response to `until` ends with
    the snapshot: who divides a range into parts (Spark) counts messages from offsets, and positions leap there."""
    room = message.bytes_max - len(reply.data)
    ends_with_snapshot = reply.start < 0 <= reply.next and not reply.at_tail
    if message.until is not None or not ends_with_snapshot or reply.held is not None or room <= 0:
        return reply
    try:
        after = await service.engine.read(Read(message.path, reply.stream.offset(reply.next), message.until, room))
    except HeadwaterError:  # trimmed or deleted meanwhile: the next request gets the error
        return reply
    if len(after.data) > room or not after.stream.names.has(reply.start):
        return reply
    return msgspec.structs.replace(after, start=reply.start, data=reply.data + after.data)


def _feed(service: Service, query: ReadQuery, reply: ReadReply) -> Response:
    cursor = next_cursor(query.cursor, service.now_ms, service.entropy())
    response_headers = [("content-type", "text/event-stream"), NO_CACHE, UNBUFFERED, SANDBOX]
    if reply.stream.kind is ContentKind.BINARY:
        response_headers.append((headers.SSE_DATA_ENCODING, "base64"))
    return Response(200, tuple(response_headers), feed=EventFeed(service, reply, cursor))


def _nothing_more(reply: ReadReply) -> Response:
    """204, at which an EventSource stops reconnecting."""
    return Response(204, ((headers.NEXT_OFFSET, offset_text(reply.stream, reply.next)), UP_TO_DATE, CLOSED, NO_STORE))


def _piece(service: Service, request: Request, query: ReadQuery, reply: ReadReply) -> tuple[Response, str | None]:
    """One bounded piece of a stream, with the headers that a reader needs to continue, and the encoding of its body."""
    stream, data, at_tail = reply.stream, reply.data, reply.at_tail
    closed = stream.closed and at_tail
    response_headers = [(headers.NEXT_OFFSET, offset_text(stream, reply.next)), SANDBOX]
    if query.offset == BEGINNING:  # it moves when data is trimmed, so a reader must not count from there
        response_headers.append((headers.FIRST_OFFSET, offset_text(stream, reply.start)))
    if at_tail:
        response_headers.append(UP_TO_DATE)
    if closed:
        response_headers.append(CLOSED)
    live = query.live is Live.LONG_POLL
    if live:
        cursor = next_cursor(query.cursor, service.now_ms, service.entropy())
        response_headers.append((headers.CURSOR, str(cursor)))
    if live and not data:
        return Response(204, (*response_headers, NO_STORE)), None
    if query.offset is None and at_tail and not data and not live:
        return Response(200, (*_described(stream), SANDBOX), wrap(stream.kind, data)), None
    tag = etag(stream.version(reply.next), stream.mark(reply.start), stream.mark(reply.next), closed=closed)
    kept_s = None if stream.retention is None else stream.retention.seconds
    caching = cache_control(query, stream.deadline_ms, service.now_ms, at_tail=at_tail, kept_s=kept_s)
    response_headers += [("cache-control", caching), VARY]
    if not live and (known := not_modified(request, tuple(response_headers), tag)) is not None:
        return known, None
    coding = choose_coding(service, request, tag, len(data))
    response_headers += [("content-type", stream.content_type), *coding.headers]
    return Response(200, tuple(response_headers), wrap(stream.kind, data)), coding.encoding
