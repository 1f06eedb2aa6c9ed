"""Create, append and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import lru_cache, partial

import msgspec

from headwater.engine.committer import Answer
from headwater.engine.messages import FindRow, VisibleStream
from headwater.engine.ordering import Place
from headwater.errors import (
    BadRequestError,
    ConflictError,
    HeadwaterError,
    InvalidForkError,
    InvalidHeaderError,
    StreamNotFoundError,
)
from headwater.limits import CACHED_TEXT_LENGTH_MAX, CHANGES_INLINE_BYTES, CHANGES_MAX, Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest, Reply
from headwater.log.content import ContentKind
from headwater.log.producers import ProducerTuple
from headwater.protocol.conditions import check_unconditional, parse_table_ends
from headwater.protocol.streams import headers
from headwater.protocol.streams.composing import is_compose
from headwater.protocol.streams.retention import parse_retention
from headwater.protocol.tables.changes import check_changes, is_plain_change
from headwater.protocol.tables.content_type import TableType, check_changes_type, format_table_type, parse_table_type
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.headers import AFTER_SEQNO, parse_fork_seqno, parse_mirror
from headwater.protocol.tables.paths import name_of, surl_path
from headwater.protocol.trace_context import TRACEPARENT
from headwater.server.auth.scopes import Action
from headwater.server.composing import SourceData, requested_sources
from headwater.server.following import Followers
from headwater.server.following.documents import forgotten, resolved
from headwater.server.http import Request, Respond, Response
from headwater.server.observing.tracing import context_of
from headwater.server.problems import problem
from headwater.server.references import table_path
from headwater.server.service import Service
from headwater.server.streams.replies import CLOSED, NO_STORE, created_response
from headwater.server.tables import mirrors
from headwater.server.tables.replies import answer, last_seqno, table_problem, type_of
from headwater.server.views.definition import Definition
from headwater.server.views.requests import create as create_view
from headwater.server.views.requests import table_view

VIEW_TABLE_TYPE = TableType(schema="json")  # default of views, whose records are JSON

_MIRROR = ContentKind.MIRROR  # a module constant for speed: see log/content.py
_NO_ESCAPES = Escape.NONE
_OF_APPENDS = headers.OF_APPENDS | {AFTER_SEQNO}


def append(service: Service, request: Request, path: str, respond: Respond) -> None:
    fields = request.headers
    if TRACEPARENT in fields and service.notifier is not None:
        service.notifier.traced(path, context_of(request))
    producer = seq = ends = None
    close = False
    if not _OF_APPENDS.isdisjoint(fields):
        if AFTER_SEQNO in fields:
            mirrors.append(service, request, path, respond)
            return
        producer, seq, close = headers.parse_producer(fields), headers.parse_seq(fields), headers.parse_closed(fields)
        ends = parse_table_ends(fields)
    engine = service.engine
    if is_compose(fields.get("content-type")):
        draft = Append(path, engine.now_ms(), b"", None, producer, seq, close, ends=ends)
        sources = requested_sources(request, path)
        build = partial(_composed, service.limits)
        work = service.composer.compose(engine, draft, sources, _check_source, build)
        service.tasks.start(answer(path, respond, _appended_by(work, producer)))
        return
    framing = engine.framing(path)
    body = request.body
    key = None if producer is None else (path, producer.id)
    if framing is None or len(body) > CHANGES_INLINE_BYTES or engine.order.holds_back(key):
        draft = Append(path, engine.now_ms(), body, None, producer, seq, close, ends=ends)
        place = None if key is None else engine.order.enter(key)
        task = service.tasks.start(answer(path, respond, _append_later(service, request, draft, place, respond)))
        if place is not None:
            task.add_done_callback(lambda _: place.leave())
        return
    table_id, content_type, kind = framing
    if body or not close or kind is _MIRROR:
        body = _checked(service.limits, request, content_type, kind)
    # The body was checked for this table. Another one may be created in its place, so name this one.
    command = Append(path, engine.now_ms(), body, content_type, producer, seq, close, stream_id=table_id, ends=ends)
    _submit(service, command, respond)


async def _append_later(
    service: Service, request: Request, draft: Append, place: Place | None, respond: Respond
) -> None:
    """Append in the background: the table must be loaded, the body is large, or an earlier append is in the
    background."""
    if place is None:
        _submit(service, await _prepared(service, request, draft), respond)
        return
    async with place:
        command = await _prepared(service, request, draft)
        with place.deciding():
            _submit(service, command, respond)


async def _appended_by(work: Awaitable[Reply], producer: ProducerTuple | None) -> Response:
    return _appended(await work, 200 if producer is not None else 204)


def _check_source(target: VisibleStream, content_type: str) -> None:
    _refuse_mirror(target.kind)
    _known_escape_of(content_type, target.content_type)


def _composed(limits: Limits, target: VisibleStream, draft: Append, sources: list[SourceData]) -> Append:
    """The append of the changes in the sources."""
    bytes_max, size, parts = limits.body_bytes_max, 0, []
    for one in sources:
        data = one.inflated(bytes_max - size) if one.is_compressed else one.data
        size += len(data)
        if data:
            parts.append(data if data.endswith(b"\n") else data + b"\n")
    body = _changes(limits, b"".join(parts), type_of(target.content_type).escape)
    return msgspec.structs.replace(draft, body=body)


async def _prepared(service: Service, request: Request, draft: Append) -> Append:
    """The append with its body checked for the table that is there now."""
    table = await service.engine.info(draft.path)
    body = draft.body
    if len(body) > CHANGES_INLINE_BYTES:
        body = await asyncio.to_thread(_checked, service.limits, request, table.content_type, table.kind)
    elif body or not draft.close or table.kind is _MIRROR:
        body = _checked(service.limits, request, table.content_type, table.kind)
    known = {"content_type": table.content_type, "stream_id": table.id}
    return msgspec.structs.replace(draft, now_ms=service.now_ms, body=body, **known)


def _checked(limits: Limits, request: Request, table_type: str, kind: ContentKind) -> bytes:
    """Check a body. Returns its changes as they are stored, one per line."""
    _refuse_mirror(kind)
    content_type = request.headers.get("content-type")
    if content_type is not None and len(content_type) > CACHED_TEXT_LENGTH_MAX:
        escape = _escape_of(content_type, table_type)
    else:
        escape = _known_escape_of(content_type, table_type)
    return _changes(limits, request.body, escape)


def _refuse_mirror(kind: ContentKind) -> None:
    if kind is _MIRROR:
        raise ConflictError(
            "the table mirrors another one, which gives its rows their SeqNos: append changes there, "
            "or send rows of it here with STP-After-SeqNo"
        )


def _escape_of(content_type: str | None, table_type: str) -> Escape:
    """The escaping of a body, by its content type and that of the table."""
    table = type_of(table_type)
    if content_type is not None and content_type != table_type:
        check_changes_type(content_type, table)
    return table.escape


_known_escape_of = lru_cache(maxsize=1024)(_escape_of)


def _changes(limits: Limits, body: bytes, escape: Escape) -> bytes:
    if escape is _NO_ESCAPES and is_plain_change(body):
        return body
    return check_changes(body, min(CHANGES_MAX, limits.messages_per_append_max), escape)


def _submit(service: Service, command: Append, respond: Respond) -> None:
    accepted = 200 if command.producer is not None and command.body else 204
    respond = service.watched(respond)

    def answered(answer: Answer) -> None:
        if isinstance(answer, HeadwaterError):
            respond(table_problem(command.path, answer))
        else:
            respond(_appended(answer, accepted))

    service.engine.submit(command, answered)


def _appended(reply: Reply, accepted: int) -> Response:
    response_headers = [last_seqno(reply.last_seqno)]
    if reply.closed:
        response_headers.append(CLOSED)
    if reply.producer is not None:
        response_headers += _producer_headers(reply.producer)
    return Response(204 if reply.duplicate else accepted, tuple(response_headers))


def _producer_headers(producer: ProducerTuple) -> list[tuple[str, str]]:
    return [(headers.PRODUCER_EPOCH, str(producer.epoch)), (headers.PRODUCER_SEQ, str(producer.seq))]


def create(service: Service, request: Request, path: str, respond: Respond) -> None:
    fields = request.headers
    check_unconditional(fields)
    content_type = fields.get("content-type")
    view = table_view(request, path)
    kind = VIEW_TABLE_TYPE if view is not None and content_type is None else parse_table_type(content_type)
    ttl_s, expires_ms = headers.parse_expiry(fields)
    source = None if headers.FORKED_FROM not in fields else table_path(fields[headers.FORKED_FROM], request.mount)
    if source is not None:
        request.caller.require(Action.READ, source)
    seqno = parse_fork_seqno(fields)
    if source is None and seqno is not None:
        raise InvalidHeaderError("STP-Fork-SeqNo needs Stream-Forked-From")
    mirror = parse_mirror(fields)
    if mirror and view is not None:
        raise BadRequestError("a table is a mirror or a view, not both: STP-Mirror or STP-View-Of")
    if mirror and request.body:
        raise BadRequestError("a mirror is created without rows; append them afterwards, with STP-After-SeqNo")
    command = Create(
        path=path,
        now_ms=service.now_ms,
        content_type=None if source is not None and content_type is None else format_table_type(kind),
        kind=ContentKind.MIRROR if mirror else ContentKind.ROWS,
        fork=None if source is None else ForkRequest(source),
        ttl_s=ttl_s,
        expires_ms=expires_ms,
        closed=headers.parse_closed(fields),
        body=request.body,
        owner=request.caller.owner,
        retention=parse_retention(fields),
    )
    respond = service.watched(respond)
    service.tasks.start(answer(path, respond, _create(service, request, command, kind, seqno, view)))


async def _fork_request(service: Service, source: str, seqno: int) -> ForkRequest:
    """The command for a fork that inherits the rows up to a SeqNo, which may be within a record."""
    row = await service.engine.find_row(FindRow(source, seqno))
    if seqno > row.table.last_seqno:
        raise InvalidForkError(f"the source ends with row {row.table.last_seqno}")
    if row.table.kind is _MIRROR and seqno:  # its SeqNos have gaps
        before = await service.engine.find_row(FindRow(source, seqno - 1))
        if before.start.position == row.start.position:
            raise InvalidForkError(f"the source has no row {seqno}; name a row that it has")
    return ForkRequest(source, row.table.offset(row.start.record), row.start.skip, last_seqno=seqno)


async def _create(
    service: Service,
    request: Request,
    command: Create,
    kind: TableType,
    seqno: int | None,
    view: Definition | None,
) -> Response:
    if command.fork is not None and seqno is not None:
        command = msgspec.structs.replace(command, fork=await _fork_request(service, command.fork.source, seqno))
    if command.body:
        body = await asyncio.to_thread(_changes, service.limits, command.body, kind.escape)
        command = msgspec.structs.replace(command, body=body)
    reply = await create_view(service, command, view)
    return created_response(reply, request, last_seqno(reply.last_seqno), surl_path(name_of(command.path)))


def delete(service: Service, request: Request, path: str, respond: Respond) -> None:
    """Delete a table, and forget the followers that Notify requests started for it."""

    def answered(answer: Answer) -> None:
        if isinstance(answer, StreamNotFoundError) and service.followers is not None and not conditional:
            service.tasks.start(_unfollow(service.followers, path, respond))
        elif isinstance(answer, HeadwaterError):
            respond(table_problem(path, answer))
        else:
            if views is not None:
                views.deleted(path)
            if service.notifier is not None:
                service.notifier.table_deleted(path)
            if service.followers is not None:
                service.followers.mirror_deleted(name_of(path))
            respond(Response(204, (NO_STORE,)))

    conditional = headers.IF_MATCH in request.headers
    views = service.views
    documents = () if views is None else views.documents_of(path)
    ends = parse_table_ends(request.headers)
    documents = (*documents, forgotten(name_of(path)), resolved(name_of(path)))
    respond = service.watched(respond)
    service.engine.submit(Delete(path, service.now_ms, documents, ends), answered)


async def _unfollow(followers: Followers, path: str, respond: Respond) -> None:
    """Stop a follower that has not created its table yet."""
    try:
        was_followed = await followers.forget(name_of(path))
    except HeadwaterError as error:
        respond(problem(error))
    else:
        respond(Response(204, (NO_STORE,)) if was_followed else table_problem(path, StreamNotFoundError()))
