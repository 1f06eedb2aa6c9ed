"""Retention over HTTP: PATCH changes what is kept of a stream or table."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from headwater.engine.messages import VisibleStream
from headwater.errors import BadRequestError, HeadwaterError, UnknownOutcomeError
from headwater.log.content import ROWS
from headwater.protocol.conditions import check_unconditional
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.retention import Changes, check_patch, retention_headers
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.server.http import Headers, Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.replies import NO_STORE, offset_text
from headwater.server.tables.replies import first_seqno, last_seqno, table_error

log = logging.getLogger("headwater.server")


def retain(service: Service, request: Request, path: str, respond: Respond) -> None:
    check_unconditional(request.headers)
    if request.body:
        raise BadRequestError("a PATCH has no body; what is to be changed is in its headers")
    changes = check_patch(request.headers)
    service.tasks.start(_answer(path, respond, _retain(service, path, changes)))


async def _retain(service: Service, path: str, changes: Changes) -> Response:
    await service.engine.retain(path, changes)
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


async def _answer(path: str, respond: Respond, work: Coroutine[Any, Any, Response]) -> None:
    try:
        response = await work
    except HeadwaterError as error:
        response = problem(table_error(path, error) if path.startswith(LOG_PREFIX) else error)
    except Exception:
        log.exception("changing what is kept of %r failed", path)
        response = problem(UnknownOutcomeError("the server log has the cause"))
    respond(response)
