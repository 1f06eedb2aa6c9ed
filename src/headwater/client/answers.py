"""Turns a response into an error: by the problem type that Headwater sends, by the code that the protocol defines for
subscriptions, else by status and headers."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qs, urlsplit

import msgspec

from headwater import errors, limits
from headwater.client.effects import HttpReply, HttpRequest
from headwater.errors import HeadwaterError
from headwater.log.json_framing import UNREADABLE
from headwater.positions import BEGINNING, NOW
from headwater.protocol.problems import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE_PREFIX
from headwater.protocol.streams import headers
from headwater.protocol.streams.paths import RESERVED
from headwater.protocol.tables.headers import FIRST_SEQNO, LAST_SEQNO


class _CodedError(msgspec.Struct, frozen=True):
    """The error in a response about a subscription. Headwater sends it as a member of its problem documents."""

    code: str = ""
    message: str = ""
    current_holder: str = ""
    generation: int | None = None


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    error: _CodedError = _CodedError()
    stream: object = ""  # the one that failed of several
    first_offset: object = ""  # where it begins


def _by_code(root: type[HeadwaterError]) -> dict[str, type[HeadwaterError]]:
    kinds = {root().code: root}
    for child in root.__subclasses__():
        kinds |= _by_code(child)
    return kinds


_CODES = _by_code(errors.RequestError) | _by_code(errors.ServerError) | _by_code(errors.TargetRefusedError)
_PROTOCOL_CODES = {kind.protocol_code: kind for kind in _CODES.values() if kind.protocol_code}
_STATUSES: dict[int, type[HeadwaterError]] = {
    400: errors.BadRequestError,
    401: errors.UnauthorizedError,
    403: errors.ForbiddenError,
    404: errors.StreamNotFoundError,
    405: errors.MethodNotAllowedError,
    408: errors.RequestTimeoutError,
    409: errors.ConflictError,
    410: errors.StreamGoneError,
    412: errors.TailMovedError,
    413: errors.BodyTooLargeError,
    414: errors.UrlTooLongError,
    429: errors.TooManyRequestsError,
    431: errors.HeadersTooLargeError,
    500: errors.InternalError,
    503: errors.OverloadedError,
    507: errors.StorageFullError,
}


def error_of(request: HttpRequest, reply: HttpReply) -> HeadwaterError:
    problem = _problem(request, reply)
    kind, detail, is_ours = _named(request, reply, problem)
    if request.guarded and 300 <= reply.status < 400:
        kind, detail = errors.RedirectError, f"status {reply.status}, to {reply.headers.get('location', '')[:200]!r}"
    error = kind(detail)
    error.stream = problem.stream if isinstance(problem.stream, str) else ""
    # Headwater sends 503 and 507 only for requests that had no effect, or the error says that the outcome is unknown. A
    # gateway may also send them for others.
    is_refused = is_ours and reply.status in (503, 507) and not kind.outcome_unknown
    error.nothing_done = reply.status == 429 or is_refused
    error.status = reply.status
    error.url = request.url
    error.retryable = kind.retryable if is_ours else errors.is_retryable(reply.status)
    error.retry_after_s = retry_after_s(reply.headers)
    if isinstance(error, errors.StaleEpochError):
        error.epoch = integer(reply, headers.PRODUCER_EPOCH)
    elif isinstance(error, errors.SequenceGapError):
        error.expected = integer(reply, headers.PRODUCER_EXPECTED_SEQ)
        error.received = integer(reply, headers.PRODUCER_RECEIVED_SEQ)
    elif isinstance(error, errors.TailMovedError):
        error.offset = reply.headers.get(headers.NEXT_OFFSET, "")
        error.last_seqno = integer(reply, LAST_SEQNO)
    elif isinstance(error, errors.OffsetTrimmedError):
        named = problem.first_offset if isinstance(problem.first_offset, str) else ""  # events have no headers
        error.first_offset = reply.headers.get(headers.FIRST_OFFSET, named)
        error.first_seqno = integer(reply, FIRST_SEQNO)
    elif isinstance(error, errors.EntityNotFoundError):
        error.offset = reply.headers.get(headers.NEXT_OFFSET, "")
    elif isinstance(error, errors.AlreadyClaimedError):
        error.holder, error.generation = problem.error.current_holder, problem.error.generation
    return error


def integer(reply: HttpReply, name: str) -> int | None:
    """The number in a header; None if the header is absent or not a valid number."""
    value = reply.headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) <= limits.SEQNO_DIGITS_MAX else None


def _problem(request: HttpRequest, reply: HttpReply) -> _Problem:
    """The problem document of a response; an empty one if it has none. Errors of subscriptions may be plain JSON. The
    Node reference answers so to every unknown URL below `__ds`, where it means nothing about a subscription."""
    content_type = reply.headers.get("content-type", "")
    is_json = f"/{RESERVED}/subscriptions/" in request.url and content_type.startswith("application/json")
    if is_json or content_type.startswith(PROBLEM_MEDIA_TYPE):
        with contextlib.suppress(*UNREADABLE):
            return msgspec.json.decode(reply.body, type=_Problem)
    return _Problem()


def _named(request: HttpRequest, reply: HttpReply, problem: _Problem) -> tuple[type[HeadwaterError], str, bool]:
    code = problem.type.removeprefix(PROBLEM_TYPE_PREFIX)
    if code in _CODES:
        return _CODES[code], problem.detail, True
    if problem.error.code in _PROTOCOL_CODES:
        return _PROTOCOL_CODES[problem.error.code], problem.error.message, False
    detail = problem.detail or _text_of(reply)
    if not detail and reply.status not in _STATUSES:
        detail = f"status {reply.status}"
    return _inferred(request, reply.status, reply.headers), detail, False


_TITLE = re.compile(rb"<title[^>]*>([^<]*)", re.IGNORECASE)


def _text_of(reply: HttpReply) -> str:
    """The text of a response that is not a problem document. A page is not shown: a proxy sent it, not the server."""
    if not reply.headers.get("content-type", "").lower().startswith("text/html"):
        return reply.body[: limits.ERROR_DETAIL_BYTES_MAX].decode(errors="replace").strip()
    match = _TITLE.search(reply.body)
    title = "" if match is None else match[1][: limits.ERROR_DETAIL_BYTES_MAX].decode(errors="replace").strip()
    server = reply.headers.get("server", "")[:80]
    page_title = f" {title!r}" if title else ""
    by = f" by {server!r}" if server else ""
    return f"status {reply.status} with an HTML page{page_title}{by}: a proxy responded instead of the server"


def _inferred(request: HttpRequest, status: int, reply_headers: Mapping[str, str]) -> type[HeadwaterError]:
    if status == 409 and headers.parse_closed(reply_headers):
        return errors.StreamClosedError
    if status == 409 and headers.PRODUCER_EXPECTED_SEQ in reply_headers:
        return errors.SequenceGapError
    if status == 410 and headers.FIRST_OFFSET in reply_headers:
        return errors.OffsetTrimmedError
    if status == 410 and request.method == "GET" and _names_offset(request.url):
        return errors.OffsetGoneError  # or the stream was deleted, which a read from its beginning shows
    if status == 403 and headers.PRODUCER_EPOCH in reply_headers:
        return errors.StaleEpochError
    if status == 409 and request.method == "PUT":
        return errors.ConfigurationError
    if status == 409 and request.method == "POST":
        return errors.SequenceRegressionError if headers.SEQ in request.headers else errors.ContentTypeError
    return _STATUSES.get(status, errors.RequestError if status < 500 else errors.ServerError)


def _names_offset(url: str) -> bool:
    """Whether a request asks for data after an offset that the server gave, or for rows after a SeqNo."""
    query = parse_qs(urlsplit(url).query)
    places = query.get("offset") or query.get("since_id") or [BEGINNING]
    return places[0] not in (BEGINNING, NOW, "0")


def retry_after_s(reply_headers: Mapping[str, str]) -> float | None:
    value = reply_headers.get("retry-after", "").strip()
    try:
        delay_s = float(value) if value.isascii() and value.isdigit() else _until(value)
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, delay_s), limits.RETRY_AFTER_MAX_S)


def _until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


def required(request: HttpRequest, reply: HttpReply, *names: str) -> str:
    """The value of the first of these headers that is present; ProtocolError if none is."""
    for name in names:
        if name in reply.headers:
            return reply.headers[name]
    error = errors.ProtocolError(f"status {reply.status} without {' or '.join(names)}")
    error.url = request.url
    raise error
