"""The control APIs: the list of streams, split points and records of a range. All are extensions."""

from __future__ import annotations

from headwater import limits
from headwater.engine.messages import FindRecords, FindSplits, RecordsReply, VisibleStream
from headwater.errors import InvalidQueryError
from headwater.log.offsets import Offset
from headwater.positions import BEGINNING, NOW
from headwater.protocol.streams.headers import format_instant, parse_instant
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.paths import parse_path, quote_path
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import LOG_OWN_LAST
from headwater.server.http import Request, Response
from headwater.server.listing import readable_page
from headwater.server.references import parse_flag, parse_integer
from headwater.server.service import Service
from headwater.server.streams.replies import json_response, offset_text


async def list_streams(service: Service, request: Request, _: str) -> Response:
    query = parse_query(request.query)
    limit = parse_integer(query, "limit", limits.LIST_PAGE_DEFAULT, limits.LIST_PAGE_MAX)
    after = max(service.lists.read(query.get("after", "")), LOG_OWN_LAST)  # tables have a separate list
    page = await readable_page(service.engine, service.lists, request.caller, query.get("prefix", ""), after, limit)
    next_after = None if page.next_after is None else service.lists.write(page.next_after, hidden=page.hidden)
    return json_response({"streams": [listed(stream) for stream in page.streams], "next_after": next_after})


async def splits(service: Service, request: Request, _: str) -> Response:
    query = parse_query(request.query)
    if ("parts" in query) == ("bytes" in query):
        raise InvalidQueryError("give parts, how many, or bytes, how large each may be")
    offset, until = _range(query)
    reply = await service.engine.splits(
        FindSplits(
            _stream(query),
            offset,
            until,
            parts=parse_integer(query, "parts", 1, limits.SPLITS_MAX),
            step_bytes=parse_integer(query, "bytes", 0, limits.PRODUCER_INTEGER_MAX),
            limit=parse_integer(query, "limit", limits.SPLITS_MAX, limits.SPLITS_MAX),
        )
    )
    return json_response(
        {
            "offset": offset_text(reply.stream, reply.start),
            "until": offset_text(reply.stream, reply.end),
            "bytes": reply.stream.size(reply.start, reply.end),
            "splits": [offset_text(reply.stream, place) for place in reply.splits],
            **_after_snapshot(reply.stream, reply.start),
        }
    )


def _after_snapshot(stream: VisibleStream, position: int) -> dict[str, str]:
    """Where the stream continues after the snapshot that a position is in."""
    if position >= 0:
        return {}
    return {"snapshot_next": offset_text(stream, stream.names.snapshot_at(position).next)}


async def records(service: Service, request: Request, _: str) -> Response:
    query = parse_query(request.query)
    at = query.get("at")
    if at is not None and "offset" in query:
        raise InvalidQueryError("give offset or at, not both")
    offset, until = _range(query)
    reply = await service.engine.records(
        FindRecords(
            _stream(query),
            offset,
            until,
            at_ms=None if at is None else parse_instant("at", at, InvalidQueryError),
            limit=parse_integer(query, "limit", limits.RECORDS_PAGE_DEFAULT, limits.RECORDS_PAGE_MAX),
        )
    )
    last = reply.records[-1].position if reply.records else reply.start
    return json_response(
        {
            "offset": offset_text(reply.stream, reply.start),
            "next_offset": offset_text(reply.stream, last),
            "up_to_date": last >= reply.end,
            **(_compact(reply) if parse_flag(query, "compact") else {"records": _each(reply)}),
        }
    )


def _each(reply: RecordsReply) -> list[dict[str, str]]:
    items, begin = [], offset_text(reply.stream, reply.start)
    for record in reply.records:
        end = offset_text(reply.stream, record.position)
        items.append({"offset": begin, "next_offset": end, "time": format_instant(record.at_ms)})
        begin = end
    return items


def _compact(reply: RecordsReply) -> dict[str, list[int]]:
    """The records as columns of numbers, for clients that need the times of many records."""
    return {
        "ends": [reply.stream.size(reply.start, record.position) for record in reply.records],
        "times_ms": [record.at_ms for record in reply.records],
    }


def named_stream(request: Request) -> str:
    """The stream that the parameter `path` names."""
    return _stream(parse_query(request.query))


def _stream(query: dict[str, str]) -> str:
    return parse_path(quote_path(query.get("path", "")))


def _range(query: dict[str, str]) -> tuple[Offset | None, Offset | None]:
    return parse_offset(query.get("offset", BEGINNING)), parse_offset(query.get("until", NOW))


def listed(stream: VisibleStream) -> dict[str, object]:
    """The entry of a stream in lists."""
    return {
        "path": stream.path,
        "content_type": stream.content_type,
        "tail_offset": offset_text(stream, stream.tail),
        "first_offset": format_offset(stream.first_offset),
        "bytes": stream.size(stream.begin, stream.tail),
        "closed": stream.closed,
        "created_at": format_instant(stream.created_ms),
        "ttl_seconds": stream.ttl_s,
        "expires_at": None if stream.deadline_ms is None else format_instant(stream.deadline_ms),
        "retention": stream.retention,
    }
