"""Create, append and delete."""

from __future__ import annotations

from headwater.engine.committer import Answer
from headwater.errors import HeadwaterError, InvalidHeaderError
from headwater.log.commands import Append, Create, Delete, ForkRequest, Reply
from headwater.protocol.streams import headers
from headwater.protocol.streams.content import check_content_type
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.paths import STREAM_ROOT, parse_path, quote_path
from headwater.server.http import Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.replies import CLOSED, NO_STORE


def append(service: Service, request: Request, path: str, respond: Respond) -> None:
    given = request.headers
    engine = service.engine
    producer = seq = None
    close = False
    if not headers.OF_APPENDS.isdisjoint(given):
        producer, seq, close = headers.parse_producer(given), headers.parse_seq(given), headers.parse_closed(given)
    accepted = 200 if producer is not None and request.body else 204
    command = Append(path, engine.now_ms(), request.body, given.get("content-type"), producer, seq, close)

    def answered(answer: Answer) -> None:
        respond(problem(answer) if isinstance(answer, HeadwaterError) else _appended(answer, accepted))

    engine.submit(command, answered)


def create(service: Service, request: Request, path: str, respond: Respond) -> None:
    given = request.headers
    content_type = given.get("content-type")
    ttl_s, expires_ms = headers.parse_expiry(given)
    command = Create(
        path=path,
        now_ms=service.now_ms,
        content_type=check_content_type(content_type) if content_type else None,
        ttl_s=ttl_s,
        expires_ms=expires_ms,
        closed=headers.parse_closed(given),
        body=request.body,
        fork=_fork_request(request),
    )

    def answered(answer: Answer) -> None:
        respond(problem(answer) if isinstance(answer, HeadwaterError) else _created(answer, request, path))

    service.engine.submit(command, answered)


def delete(service: Service, request: Request, path: str, respond: Respond) -> None:
    def answered(answer: Answer) -> None:
        respond(problem(answer) if isinstance(answer, HeadwaterError) else Response(204, (NO_STORE,)))

    service.engine.submit(Delete(path, service.now_ms), answered)


def _fork_request(request: Request) -> ForkRequest | None:
    given = request.headers
    source = given.get(headers.FORKED_FROM)
    sub_offset = headers.parse_sub_offset(given)
    offset = given.get(headers.FORK_OFFSET)
    if source is None:
        if offset is not None:
            raise InvalidHeaderError("Stream-Fork-Offset needs Stream-Forked-From")
        return None
    return ForkRequest(
        _stream_path(source, request.mount), None if offset is None else parse_offset(offset), sub_offset
    )


def _stream_path(reference: str, mount: str) -> str:
    """The stream path that a URL path in a header names."""
    name = reference.removeprefix(mount)
    if not name.startswith(STREAM_ROOT):
        raise InvalidHeaderError(f"expected the URL path of a stream, {mount}{STREAM_ROOT}…, got {reference[:80]!r}")
    return parse_path(name[len(STREAM_ROOT) :])


def _next_offset(reply: Reply) -> tuple[str, str]:
    if reply.tail is None:
        raise ValueError("the reply has no tail")
    return headers.NEXT_OFFSET, format_offset(reply.tail)


def _appended(reply: Reply, accepted: int) -> Response:
    if not reply.closed and reply.producer is None:
        return Response(accepted, (_next_offset(reply),))
    found = [_next_offset(reply)]
    if reply.closed:
        found.append(CLOSED)
    if reply.producer is not None:
        found.append((headers.PRODUCER_EPOCH, str(reply.producer.epoch)))
        found.append((headers.PRODUCER_SEQ, str(reply.producer.seq)))
    return Response(204 if reply.duplicate else accepted, tuple(found))


def _created(reply: Reply, request: Request, path: str) -> Response:
    found = [("content-type", reply.content_type), _next_offset(reply)]
    if reply.closed:
        found.append(CLOSED)
    if reply.existed:
        return Response(200, tuple(found))
    authority = request.authority or request.headers.get("host", "localhost")
    location = f"{request.scheme}://{authority}{request.mount}{STREAM_ROOT}{quote_path(path)}"
    return Response(201, (*found, ("location", location)))
