"""`GET` and `POST /v1/stream/__ds/live`: many streams over one connection. With POST the query is a form in the body,
for lists that are too long for a URL."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.engine.messages import Read, VisibleStream
from headwater.errors import (
    HeadwaterError,
    InvalidQueryError,
    NotReadyError,
    OffsetGoneError,
    OffsetLostError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
    UnsupportedMediaTypeError,
)
from headwater.limits import RETRY_AFTER_S
from headwater.log.content import media_type
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol.streams.combined import (
    FORM_MEDIA_TYPE,
    EventIds,
    Reached,
    StreamStart,
    parse_combined,
    parse_id,
)
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.combined_feeds import CombinedFeed
from headwater.server.streams.combined_members import SubscribedStreams
from headwater.server.streams.replies import NO_CACHE, NO_STORE, SANDBOX, UNBUFFERED


async def follow(service: Service, request: Request, _: str) -> Response:
    query = parse_combined(_parameters(request), service.limits.combined_streams_max)
    name = query.subscription
    if name and service.subscriptions is None:
        return _elsewhere()
    members = SubscribedStreams(service, request, name) if name else None
    last_event_id = request.headers.get("last-event-id", "")  # of an EventSource that reconnects
    reached = parse_id(query, last_event_id) if last_event_id else {}
    if members is not None:
        starts = await members.starts(reached)
    else:
        starts = {key: start for key, start in enumerate(query.streams) if key not in reached or not reached[key].over}
        if not starts:
            return Response(204, (NO_STORE,))  # an EventSource then stops reconnecting
    _check_access(request, starts.values())
    ids = EventIds(query) if query.ids else None
    feed = CombinedFeed(service, ids, request.caller, members)
    authority = service.authority
    still_allowed = None if authority is None else authority.watch(request, feed.keep_readable)
    paths = [start.path for start in starts.values()]
    place = service.places.claim(service.limits, request, *paths) if paths else None
    for key, one in reached.items():
        if ids is not None:
            ids.move(key, one)
    for key, start in starts.items():
        await _add(service, feed, key, start, reached.get(key), resumes=bool(last_event_id))
    response = Response(200, (("content-type", "text/event-stream"), NO_CACHE, UNBUFFERED, SANDBOX), feed=feed)
    if place is not None:
        response = place.hold(response)
    return response if authority is None or still_allowed is None else authority.hold(response, still_allowed)


def _elsewhere() -> Response:
    """The answer of a server without the role. It closes the connection, because each request on it meets this server
    again, if nothing but the kernel chooses among servers."""
    response = problem(
        NotReadyError(
            "another server has the subscriptions, and only it can follow the streams of one; repeat the request on a "
            "new connection until it gets there, or name the streams with stream=",
            retry_after_s=RETRY_AFTER_S,
        )
    )
    response.close = True
    return response


def _parameters(request: Request) -> str:
    if request.method != "POST":
        return request.query
    content_type = request.headers.get("content-type", "")
    if media_type(content_type) != FORM_MEDIA_TYPE:
        raise UnsupportedMediaTypeError(f"the list of streams is a form, {FORM_MEDIA_TYPE}, got {content_type[:80]!r}")
    try:
        return request.body.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidQueryError("the list of streams has characters that are not percent-encoded") from None


def _check_access(request: Request, starts: Iterable[StreamStart]) -> None:
    for start in starts:
        try:
            request.caller.require(Action.READ, start.path)
        except HeadwaterError as error:
            error.stream = start.path
            raise


async def _add(
    service: Service, feed: CombinedFeed, key: int, start: StreamStart, reached: Reached | None, *, resumes: bool
) -> None:
    """Add a stream to a feed. When a connection resumes, a stream that was deleted or trimmed meanwhile does not end
    the others: the reader is told as if it had been connected. Nor does one of a subscription that was trimmed, since
    the reader did not choose its offset."""
    offset = start.offset if reached is None else reached.offset
    try:
        stream, position = await _find(service, start.path, offset)
    except HeadwaterError as error:
        refusal = _naming(error, start.path)
        trimmed = isinstance(error, OffsetTrimmedError)
        gone = isinstance(error, StreamNotFoundError | StreamGoneError | OffsetGoneError)
        if isinstance(error, OffsetLostError) or not ((resumes and gone) or (feed.has_members and trimmed)):
            raise refusal from None
        feed.add_over(key, start.path, offset or BEGINNING, refusal if trimmed else None)
    else:
        tells_tail = reached is None or not reached.current
        feed.add(key, start.path, stream, position, tells_tail=tells_tail)


async def _find(service: Service, path: str, offset: Offset | None) -> tuple[VisibleStream, int]:
    """The stream at a path, and the position of an offset. Nothing is read yet, because there may be hundreds."""
    reply = await service.engine.read(Read(path, offset, until=offset))
    return reply.stream, reply.start


def _naming(error: HeadwaterError, path: str) -> HeadwaterError:
    error.detail = f"stream {path[:200]!r}: {error.detail or error.title}"
    error.stream = path
    return error
