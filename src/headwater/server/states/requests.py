"""Requests for entities: one, or a page of them, of the state of a stream now, or at an offset or a time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from headwater.engine.messages import FindRecords, Read, VisibleStream
from headwater.errors import (
    EntityNotFoundError,
    InvalidOffsetError,
    InvalidQueryError,
    NoStateError,
    OffsetTrimmedError,
    OverloadedError,
    StreamNotFoundError,
)
from headwater.limits import (
    BODY_PIECE_BYTES,
    ENTITY_NAME_BYTES_MAX,
    LIST_PAGE_MAX,
    STATE_PAGE_BYTES,
    STATE_PAGE_DEFAULT,
    STATE_PAGE_MAX,
    STATE_TRIMMED_TRIES,
)
from headwater.log.content import ContentKind
from headwater.log.offsets import Offset
from headwater.protocol.state.entities import Entity, EntityPage
from headwater.protocol.streams import headers
from headwater.protocol.streams.headers import parse_instant
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import log_path, surl_path
from headwater.server import bodies, compression
from headwater.server.auth.scopes import Action
from headwater.server.bodies import BodyFeed, cut
from headwater.server.http import Buffer, Headers, Request, Response
from headwater.server.references import parse_integer
from headwater.server.service import Service
from headwater.server.states.state import FoldedFrom, KeptState
from headwater.server.streams.control import named_stream
from headwater.server.streams.replies import NO_CACHE, SANDBOX, VARY, choose_coding, not_modified

T = TypeVar("T")

_TIME = re.compile(r"\d{4}-\d\d-")  # how a time begins, and no offset
_ZONE = re.compile(r" (?=\d\d:\d\d$)")  # a `+` before the zone of a time, as a query has it that is not encoded
_encode = msgspec.json.Encoder().encode


class StateQuery(NamedTuple):
    path: str
    type: str | None
    key: str | None
    at: str | None
    after: bytes
    limit: int


class _Lookup(NamedTuple):
    """What a state has for a query, and which state that was."""

    version: int
    base: FoldedFrom
    offset: Offset
    skipped: int
    entity: Entity | None = None
    page: EntityPage | None = None


async def read_state(service: Service, request: Request, _: str) -> Response:
    query = _parse(request)
    lookup = await _ask(service, request, query, lambda state: _look_up(state, query))
    if query.key is not None and lookup.entity is None:
        raise EntityNotFoundError(
            f"there is no {query.type!r} with the key {query.key[:80]!r}", at=(lookup.offset.id, lookup.offset.position)
        )
    offset = format_offset(lookup.offset)
    base = f"{lookup.base.position}{'s' if lookup.base.is_snapshot else ''}"
    tag = f'"{lookup.version}:state:{base}:{lookup.offset.position}"'
    response_headers: Headers = ((headers.NEXT_OFFSET, offset), NO_CACHE, VARY, SANDBOX)
    if (known := not_modified(request, response_headers, tag)) is not None:
        return known
    if lookup.entity is None:
        return await _answer(service, request, tag, response_headers, *await _paged(lookup, offset))
    return await _answer(service, request, tag, response_headers, lookup.entity, _opened(lookup.entity, offset))


def _parse(request: Request) -> StateQuery:
    query = parse_query(request.query)
    entity_type, key = query.get("type"), query.get("key")
    if key is not None and entity_type is None:
        raise InvalidQueryError("key needs the type of the entity: type=…&key=…")
    for name, value in (("type", entity_type), ("key", key)):
        if value == "":
            raise InvalidQueryError(f"{name} is empty, which no entity has; leave it out to read all entities")
    return StateQuery(
        named_stream(request),
        entity_type,
        key,
        query.get("at"),
        _parse_token(query.get("after", "")),
        parse_integer(query, "limit", STATE_PAGE_DEFAULT, STATE_PAGE_MAX),
    )


# The token of the next page is the name of the last entity, so pages do not depend on what the server keeps.


def _token(entity: Entity) -> str:
    return base64.urlsafe_b64encode(entity.name).decode().rstrip("=")


def _parse_token(token: str) -> bytes:
    if not token:
        return b""
    try:
        if len(token) > 2 * ENTITY_NAME_BYTES_MAX or not token.isascii():
            raise ValueError("no name is so long")
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidQueryError(
            "`after` is not the `next` of a page; leave it out to begin with the first one"
        ) from None


# Which state


async def _ask(service: Service, request: Request, query: StateQuery, question: Callable[[KeptState], T]) -> T:
    """Ask the state that a request names. If the stream is trimmed meanwhile, its state is another one."""
    states, engine, limits = service.states, service.engine, service.limits
    for _ in range(STATE_TRIMMED_TRIES):
        stream, position = await _find(service, request, query)
        try:
            if position is None:
                return await states.ask_now(engine, limits, stream, question)
            return await states.ask_at(engine, limits, stream, position, question)
        except OffsetTrimmedError:
            continue
    raise OverloadedError("the stream was trimmed again and again while it was read; try again")


async def _find(service: Service, request: Request, query: StateQuery) -> tuple[VisibleStream, int | None]:
    """The stream, and the position of the state; None: now."""
    try:
        stream = (await service.engine.read(Read(query.path, None))).stream
    except StreamNotFoundError:
        await _check_no_table(service, request, query.path)
        raise
    if stream.kind is not ContentKind.JSON:
        raise NoStateError(f"{query.path!r} is a stream of {stream.content_type}; state events are application/json")
    if query.at is None:
        return stream, None
    if not _TIME.match(query.at):
        records = await service.engine.records(FindRecords(query.path, parse_offset(query.at), limit=1))
        _check_no_part(records.stream, records.start)
        records.stream.names.begin(records.stream.first, records.start)  # what leads to it is there
        return records.stream, records.start
    at_ms = parse_instant("at", _ZONE.sub("+", query.at), InvalidQueryError)
    records = await service.engine.records(FindRecords(query.path, at_ms=at_ms, limit=1))
    position = _position_at(records.stream, records.start, at_ms)
    records.stream.names.begin(records.stream.first, position)
    return records.stream, position


def _check_no_part(stream: VisibleStream, position: int) -> None:
    if position < 0 and position != stream.names.snapshot_at(position).start:
        raise InvalidOffsetError(
            "the offset is inside a snapshot that compaction has made, which is one state as a whole; use a later one"
        )


def _position_at(stream: VisibleStream, start: int, at_ms: int) -> int:
    """The position of the state before a time. `start` is where a reader of the records from that time on begins: with
    a snapshot if none of the records that are there is older."""
    first = stream.first
    if start > first or not first:
        return max(start, first)
    if any(one.next == first and one.through_ms < at_ms for one in stream.names.snapshots):
        return first
    raise stream.names.trimmed(first, 0)


async def _check_no_table(service: Service, request: Request, path: str) -> None:
    """Tell a caller that may read the table at this path that it has no state."""
    table = log_path(path)
    if request.caller.may(Action.READ, table):
        try:
            await service.engine.info(table)
        except StreamNotFoundError:
            return
        raise NoStateError(
            f"{path!r} is a table; GET {surl_path(path)}?view=active has its live rows, key=… one of them"
        )


def _look_up(state: KeptState, query: StateQuery) -> _Lookup:
    entity = page = None
    if query.key is None:
        page = state.entities.page(query.type, query.after, query.limit, STATE_PAGE_BYTES)
    else:
        entity = state.entities.get(query.type or "", query.key)
    stream, offset = state.follower.stream, state.offset
    return _Lookup(max(stream.id, offset.id), state.base, offset, state.entities.skipped, entity, page)


# Responses


def _opened(entity: Entity, offset: str) -> tuple[Buffer, ...]:
    """One entity as JSON. Its value is as it was written."""
    head = b'{"type":%b,"key":%b,"value":' % (_encode(entity.type), _encode(entity.key))
    return head, entity.value, b',"offset":"%b"}' % offset.encode()


async def _paged(lookup: _Lookup, offset: str) -> tuple[Entity | None, tuple[Buffer, ...]]:
    """A page as JSON, and its entity if that is a large one."""
    page = lookup.page
    if page is None:
        raise RuntimeError("neither an entity nor a page was asked for")
    large = page.entities[0] if page.entities and page.entities[0].size_bytes > STATE_PAGE_BYTES else None
    if large is not None:
        parts = _opened(large, offset)
    elif len(page.entities) <= LIST_PAGE_MAX:
        parts = (_joined(page, offset),)
    else:
        parts = (await asyncio.to_thread(_joined, page, offset),)
    token = f'"{_token(page.entities[-1])}"' if page.more else "null"
    end = f'],"next":{token},"offset":"{offset}","skipped":{lookup.skipped}}}'
    return large, (b'{"entities":[', *parts, end.encode())


def _joined(page: EntityPage, offset: str) -> bytes:
    return b",".join([b"".join(_opened(entity, offset)) for entity in page.entities])


async def _answer(
    service: Service,
    request: Request,
    tag: str,
    response_headers: Headers,
    entity: Entity | None,
    body: tuple[Buffer, ...],
) -> Response:
    """The response, in pieces if it is large. The memory of a large entity counts until it is sent."""
    response_headers += (("content-type", "application/json"),)
    if request.method == "HEAD":
        return Response(200, (*response_headers, ("etag", tag)), body)
    size_bytes = sum(map(len, body))
    in_pieces = entity is not None and size_bytes > BODY_PIECE_BYTES
    coding = choose_coding(service, request, tag, size_bytes, in_pieces=in_pieces)
    response_headers += coding.headers
    inline_bytes = service.limits.compress_inline_bytes
    if in_pieces and entity is not None:
        held = service.engine.hold(entity.run)
        pieces = cut(body)
        if coding.encoder is not None:
            pieces = bodies.encoded(pieces, coding.encoder, inline_bytes)
        return Response(200, response_headers, feed=BodyFeed(service.turns, pieces, held))
    if coding.encoding is not None:
        body = (await compression.encode_body(body, coding.encoding, inline_bytes),)
    return Response(200, response_headers, body)
