"""Retention over HTTP: PATCH changes what is kept of a stream or table, and POST trims it."""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine
from typing import Any

from headwater.engine.messages import VisibleStream
from headwater.errors import BadRequestError, HeadwaterError, InvalidQueryError, UnknownOutcomeError
from headwater.log.content import ROWS
from headwater.log.offsets import Offset
from headwater.positions import NOW
from headwater.protocol.conditions import check_unconditional
from headwater.protocol.streams import headers
from headwater.protocol.streams.headers import parse_instant
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.streams.retention import Changes, check_patch, retention_headers
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.protocol.tables.rows import is_seqno
from headwater.server.http import Headers, Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.control import named_stream
from headwater.server.streams.replies import NO_STORE, offset_text
from headwater.server.tables.replies import first_seqno, last_seqno, table_error

log = logging.getLogger("headwater.server")

_INSTANT = re.compile(r"[0-9]{4}-")  # how a time begins, and neither an offset nor a SeqNo


def retain(service: Service, request: Request, path: str, respond: Respond) -> None:
    check_unconditional(request.headers)
    _check_no_body(request)
    changes = check_patch(request.headers)
    service.tasks.start(_answer(service, path, respond, _retain(service, path, changes)))


async def _retain(service: Service, path: str, changes: Changes) -> Response:
    await service.engine.retain(path, changes)
    return _kept(await service.engine.info(path))


def trim_stream(service: Service, request: Request, _: str, respond: Respond) -> None:
    query = parse_query(request.query)
    before = _before(query)
    _check_no_body(request)
    path = named_stream(request)
    if _INSTANT.match(before):
        work = _trim(service, path, at_ms=parse_instant("before", before, InvalidQueryError))
    else:
        work = _trim(service, path, before=parse_offset(before))
    service.tasks.start(_answer(service, path, respond, work))


def trim_table(service: Service, request: Request, path: str, respond: Respond) -> None:
    before = _before(parse_query(request.query))
    _check_no_body(request)
    if _INSTANT.match(before):
        work = _trim(service, path, at_ms=parse_instant("before", before, InvalidQueryError))
    elif before == NOW:
        work = _trim(service, path)
    elif is_seqno(before):
        work = _trim(service, path, seqno=int(before))
    else:
        raise InvalidQueryError(f"before must be a SeqNo, an RFC 3339 time or now, got {before[:80]!r}")
    service.tasks.start(_answer(service, path, respond, work))


def _before(query: dict[str, str]) -> str:
    before = query.get("before")
    if before is None:
        raise InvalidQueryError("a trim needs before: what comes before it is removed")
    return before


def _check_no_body(request: Request) -> None:
    if request.body:
        raise BadRequestError("this request has no body; what it does is in its headers and its query")


async def _trim(
    service: Service, path: str, *, before: Offset | None = None, at_ms: int | None = None, seqno: int | None = None
) -> Response:
    await service.engine.trim(path, before=before, at_ms=at_ms, seqno=seqno)
    return _kept(await service.engine.info(path))


def _kept(stream: VisibleStream) -> Response:
    """What is kept of a stream or table, and where it begins now."""
    ends: Headers = (last_seqno(stream.last_seqno), first_seqno(stream.first_seqno))
    if stream.kind < ROWS:
        ends = (
            (headers.NEXT_OFFSET, offset_text(stream, stream.tail)),
            (headers.FIRST_OFFSET, format_offset(stream.first_offset)),
        )
    return Response(204, (*ends, *retention_headers(stream.retention), NO_STORE))


async def _answer(service: Service, path: str, respond: Respond, work: Coroutine[Any, Any, Response]) -> None:
    try:
        respond = service.watched(respond)
        response = await work
    except HeadwaterError as error:
        response = problem(table_error(path, error) if path.startswith(LOG_PREFIX) else error)
    except Exception:
        log.exception("changing what is kept of %r failed", path)
        response = problem(UnknownOutcomeError("the server log has the cause"))
    finally:
        work.close()
    respond(response)
