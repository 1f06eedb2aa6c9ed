"""Compaction over HTTP: POST compacts a stream or table now, and answers when that is done."""

from __future__ import annotations

import logging

from headwater.errors import BadRequestError, HeadwaterError, InternalError, UnknownOutcomeError
from headwater.log.content import ROWS
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.server.compacting.compaction import SnapshotFailedError
from headwater.server.http import Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.control import named_stream
from headwater.server.streams.replies import json_response
from headwater.server.tables.replies import table_error

log = logging.getLogger("headwater.compacting")


def compact_stream(service: Service, request: Request, _: str, respond: Respond) -> None:
    compact_table(service, request, named_stream(request), respond)


def compact_table(service: Service, request: Request, path: str, respond: Respond) -> None:
    """The same for a path in the log, of a stream or a table."""
    if request.body:
        raise BadRequestError("this request has no body; what it compacts is in its URL")
    service.tasks.start(_answer(service, path, respond))


async def _answer(service: Service, path: str, respond: Respond) -> None:
    try:
        response = await _compact(service, path)
    except HeadwaterError as error:
        response = problem(table_error(path, error) if path.startswith(LOG_PREFIX) else error)
    except SnapshotFailedError as error:
        log.warning("compacting %r failed: %s", path, error)
        response = problem(InternalError(f"the snapshot could not be computed, and nothing was replaced: {error}"))
    except Exception:
        log.exception("compacting %r failed", path)
        response = problem(UnknownOutcomeError("the server log has the cause"))
    respond(response)


async def _compact(service: Service, path: str) -> Response:
    if service.compactor is None:
        raise InternalError("this server compacts nothing")
    result = await service.compactor.compact_now(path)
    stream = await service.engine.info(path)
    first: dict[str, object] = {"first_seqno": stream.first_seqno}
    if stream.kind < ROWS:
        first = {"first_offset": format_offset(stream.first_offset)}
    return json_response(
        {
            "compacted": result.compacted,
            "before_bytes": result.before_bytes,
            "after_bytes": result.after_bytes,
            **({} if result.compacted else {"reason": result.reason}),
            **first,
        }
    )
