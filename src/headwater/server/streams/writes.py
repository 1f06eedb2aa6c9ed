"""Create, append and delete."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from functools import partial

import msgspec

from headwater.engine.committer import Answer, Answered
from headwater.engine.messages import VisibleStream
from headwater.errors import (
    ContentTypeError,
    EmptyBodyError,
    HeadwaterError,
    InvalidHeaderError,
    TooManyMessagesError,
    UnknownOutcomeError,
)
from headwater.limits import Limits
from headwater.log import json_framing
from headwater.log.commands import Append, Create, Delete, ForkRequest, FramedBody, Reply
from headwater.log.content import ContentKind, kind_of, same_type
from headwater.protocol.conditions import check_unconditional, parse_stream_ends
from headwater.protocol.streams import headers
from headwater.protocol.streams.composing import ZSTD_TYPE, is_compose
from headwater.protocol.streams.headers import check_content_type
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.paths import STREAM_ROOT, quote_path
from headwater.protocol.streams.retention import parse_retention
from headwater.server.auth.scopes import Action
from headwater.server.composing import SourceData, check_no_compose, requested_sources
from headwater.server.http import Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.references import stream_path
from headwater.server.service import Service
from headwater.server.streams.replies import CLOSED, NO_STORE, created_response
from headwater.server.views.definition import JSON_TYPE
from headwater.server.views.requests import create as create_view
from headwater.server.views.requests import stream_view

log = logging.getLogger("headwater.server")


def append(service: Service, request: Request, path: str, respond: Respond) -> None:
    fields = request.headers
    engine = service.engine
    producer = seq = ends = None
    close = False
    if not headers.OF_APPENDS.isdisjoint(fields):
        producer, seq, close = headers.parse_producer(fields), headers.parse_seq(fields), headers.parse_closed(fields)
        ends = parse_stream_ends(fields)
    accepted = 200 if producer is not None and request.body else 204
    content_type = fields.get("content-type")
    command = Append(path, engine.now_ms(), request.body, content_type, producer, seq, close, ends=ends)

    def answered(answer: Answer) -> None:
        respond(problem(answer) if isinstance(answer, HeadwaterError) else _appended(answer, accepted))

    if content_type != JSON_TYPE and is_compose(content_type):
        sources = requested_sources(request, path)
        draft = msgspec.structs.replace(command, body=b"")
        build = partial(_composed, service.limits)
        work = service.composer.compose(engine, draft, sources, _check_source, build)
        service.tasks.start(_in_background(work, answered, "a compose"))
    else:
        respond = service.watched(respond)
        engine.submit(command, answered)


def _check_source(target: VisibleStream, content_type: str) -> None:
    if not same_type(content_type, target.content_type):
        raise ContentTypeError(f"the stream is {target.content_type}, and takes data of this type or {ZSTD_TYPE}")


def _composed(limits: Limits, target: VisibleStream, draft: Append, sources: list[SourceData]) -> Append:
    """The append of the data of sources. JSON that was stored is valid, and only counted."""
    bytes_max, messages_max, size, count, parts = limits.body_bytes_max, limits.messages_per_append_max, 0, 0, []
    for one in sources:
        data = one.inflated(bytes_max - size) if one.is_compressed else one.data
        size += len(data)
        if target.kind is ContentKind.JSON and one.is_compressed:
            data, messages = json_framing.framed(data, messages_max, may_be_empty=True)
            count += messages
        elif target.kind is ContentKind.JSON:
            count += json_framing.count_messages(data)
        parts.append(data)
    if count > messages_max:
        raise TooManyMessagesError(f"an append may have at most {messages_max} messages, these are {count}")
    data = b"".join(parts)
    if not data:
        raise EmptyBodyError("the sources have no data in these ranges")
    return msgspec.structs.replace(draft, body=data, framed=FramedBody(data, messages=count))


def create(service: Service, request: Request, path: str, respond: Respond) -> None:
    fields = request.headers
    check_unconditional(fields)
    content_type = fields.get("content-type")
    view = stream_view(request, path)
    if view is not None:
        content_type = content_type or JSON_TYPE
        if kind_of(content_type) is not ContentKind.JSON:
            raise InvalidHeaderError(f"a view of a table is a stream of {JSON_TYPE}, got {content_type[:80]!r}")
    if content_type is not None:
        check_no_compose(content_type)
    ttl_s, expires_ms = headers.parse_expiry(fields)
    command = Create(
        path=path,
        now_ms=service.now_ms,
        content_type=check_content_type(content_type) if content_type else None,
        ttl_s=ttl_s,
        expires_ms=expires_ms,
        closed=headers.parse_closed(fields),
        body=request.body,
        fork=_fork_request(request),
        owner=request.caller.owner,
        retention=parse_retention(fields),
    )

    def answered(answer: Answer) -> None:
        respond(problem(answer) if isinstance(answer, HeadwaterError) else _created(answer, request, path))

    if view is not None or (service.views is not None and service.views.holds(path)):
        service.tasks.start(_in_background(create_view(service, command, view), answered, "creating a view"))
    else:
        respond = service.watched(respond)
        service.engine.submit(command, answered)


async def _in_background(work: Awaitable[Reply], answered: Answered, what: str) -> None:
    try:
        answered(await work)
    except HeadwaterError as error:
        answered(error)
    except Exception:
        log.exception("%s failed", what)
        answered(UnknownOutcomeError("the server log has the cause"))


def delete(service: Service, request: Request, path: str, respond: Respond) -> None:
    views = service.views

    def answered(answer: Answer) -> None:
        if isinstance(answer, HeadwaterError):
            respond(problem(answer))
            return
        if views is not None:
            views.deleted(path)
        respond(Response(204, (NO_STORE,)))

    documents = () if views is None else views.documents_of(path)
    ends = parse_stream_ends(request.headers)
    respond = service.watched(respond)
    service.engine.submit(Delete(path, service.now_ms, documents, ends), answered)


def _fork_request(request: Request) -> ForkRequest | None:
    fields = request.headers
    source = fields.get(headers.FORKED_FROM)
    sub_offset = headers.parse_sub_offset(fields)
    offset = fields.get(headers.FORK_OFFSET)
    if source is None:
        if offset is not None:
            raise InvalidHeaderError("Stream-Fork-Offset needs Stream-Forked-From")
        return None
    path = stream_path(source, request.mount)
    request.caller.require(Action.READ, path)
    return ForkRequest(path, None if offset is None else parse_offset(offset), sub_offset)


def _next_offset(reply: Reply) -> tuple[str, str]:
    if reply.tail is None:
        raise ValueError("the reply has no tail")
    return headers.NEXT_OFFSET, format_offset(reply.tail)


def _appended(reply: Reply, accepted: int) -> Response:
    if not reply.closed and reply.producer is None and reply.tail is not None:
        return Response(accepted, ((headers.NEXT_OFFSET, format_offset(reply.tail)),))
    response_headers = [_next_offset(reply)]
    if reply.closed:
        response_headers.append(CLOSED)
    if reply.producer is not None:
        response_headers.append((headers.PRODUCER_EPOCH, str(reply.producer.epoch)))
        response_headers.append((headers.PRODUCER_SEQ, str(reply.producer.seq)))
    return Response(204 if reply.duplicate else accepted, tuple(response_headers))


def _created(reply: Reply, request: Request, path: str) -> Response:
    return created_response(reply, request, _next_offset(reply), f"{STREAM_ROOT}{quote_path(path)}")
