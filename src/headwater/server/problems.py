"""Turns errors into responses with a status and a problem document (RFC 9457)."""

from __future__ import annotations

import math

import msgspec

from headwater.errors import (
    AlreadyClaimedError,
    EntityNotFoundError,
    ForbiddenError,
    HeadwaterError,
    MethodNotAllowedError,
    OffsetTrimmedError,
    SequenceGapError,
    StaleEpochError,
    StreamClosedError,
    TailMovedError,
    UnauthorizedError,
    UnsupportedEncodingError,
)
from headwater.limits import RETRY_AFTER_S
from headwater.log.offsets import Offset
from headwater.protocol import encodings
from headwater.protocol.problems import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE_PREFIX
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.tables.headers import FIRST_SEQNO, LAST_SEQNO
from headwater.server.http import Response

_UNAVAILABLE = 503
_PROBLEM_TYPE = ("content-type", PROBLEM_MEDIA_TYPE)
_encoder = msgspec.json.Encoder()


def problem(error: HeadwaterError, *, close: bool = False, with_code: bool = False) -> Response:
    """The response to a request that failed. `with_code`: with the member `error` too, as requests to subscriptions."""
    members = _members(error)
    if with_code:
        members["error"] = _coded(error)
    body = _encoder.encode(members)
    response_headers = (_PROBLEM_TYPE, ("cache-control", "no-store"), *_facts(error))
    return Response(error.status, response_headers, (body,), close=close)


def problem_document(error: HeadwaterError) -> bytes:
    return _encoder.encode(_members(error))


def _members(error: HeadwaterError) -> dict[str, object]:
    return {
        "type": f"{PROBLEM_TYPE_PREFIX}{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail or error.title,
        "retryable": error.retryable,
        **({"stream": error.stream} if error.stream else {}),
        **(_beginning(error) if isinstance(error, OffsetTrimmedError) else {}),
    }


def _beginning(error: OffsetTrimmedError) -> dict[str, object]:
    """Where a stream or table begins."""
    if error.first_seqno is not None:
        return {"first_seqno": error.first_seqno}
    return {} if error.first is None else {"first_offset": format_offset(Offset(*error.first))}


def _coded(error: HeadwaterError) -> dict[str, object]:
    """The member `error` of PROTOCOL.md. Errors for which it has no code have the code of their problem type."""
    code = error.protocol_code or error.code.upper().replace("-", "_")
    coded: dict[str, object] = {"code": code, "message": error.detail or error.title}
    if isinstance(error, AlreadyClaimedError):
        coded |= {"current_holder": error.holder, "generation": error.generation}
    return coded


def with_request_id(response: Response, request_id: str) -> None:
    """Put the request id into a problem document. The characters of an id need no JSON escapes."""
    if len(response.body) == 1 and response.headers and response.headers[0] == _PROBLEM_TYPE:
        response.body = (b'%b,"request_id":"%b"}' % (bytes(response.body[0])[:-1], request_id.encode("ascii")),)


def _facts(error: HeadwaterError) -> list[tuple[str, str]]:
    """The attributes of an error as headers."""
    facts: list[tuple[str, str]] = []
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status == _UNAVAILABLE:
        retry_after_s = RETRY_AFTER_S
    if retry_after_s is not None:
        facts.append(("retry-after", str(math.ceil(retry_after_s))))
    if isinstance(error, StaleEpochError) and error.epoch is not None:
        facts.append((headers.PRODUCER_EPOCH, str(error.epoch)))
    elif isinstance(error, SequenceGapError) and error.expected is not None:
        facts.append((headers.PRODUCER_EXPECTED_SEQ, str(error.expected)))
        facts.append((headers.PRODUCER_RECEIVED_SEQ, str(error.received)))
    elif isinstance(error, MethodNotAllowedError):
        facts.append(("allow", ", ".join(error.allowed)))
    elif isinstance(error, UnauthorizedError):
        facts.append(("www-authenticate", 'Bearer realm="headwater"'))
    elif isinstance(error, ForbiddenError):
        facts.append(("www-authenticate", 'Bearer realm="headwater", error="insufficient_scope"'))
    elif isinstance(error, UnsupportedEncodingError):
        facts.append(("accept-encoding", encodings.IDENTITY))
    return facts + _ends(error)


def _ends(error: HeadwaterError) -> list[tuple[str, str]]:
    """Where a stream or table ends or begins, or which state it has, if the error names that."""
    if isinstance(error, OffsetTrimmedError):
        if error.first_seqno is not None:
            return [(FIRST_SEQNO, str(error.first_seqno))]
        return [] if error.first is None else [(headers.FIRST_OFFSET, format_offset(Offset(*error.first)))]
    if isinstance(error, TailMovedError) and error.last_seqno is not None:
        return [(LAST_SEQNO, str(error.last_seqno))]
    if isinstance(error, TailMovedError | StreamClosedError) and error.tail is not None:
        closed = [(headers.CLOSED, "true")] if isinstance(error, StreamClosedError) else []
        return [*closed, (headers.NEXT_OFFSET, format_offset(Offset(*error.tail)))]
    if isinstance(error, EntityNotFoundError) and error.at is not None:
        return [(headers.NEXT_OFFSET, format_offset(Offset(*error.at)))]
    return []
