"""Following many streams over one connection: every message of each stream once and in order, across lost connections.

A request names each stream with its position, and the server sends the events of all of them over one response. The
position of a stream only moves when its messages are delivered, so after any failure the next request starts exactly
there. It also begins a new request when streams are added or dropped. Ids of events are not needed for that, and not
asked for.

A stream ends when it was closed and read to its end, deleted, or may not be read any more, and the others go on. The
reader is told by a batch. Before anything of a stream has arrived, such an error is raised instead: the caller has most
likely named a wrong stream.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from headwater import limits
from headwater.client.answers import error_of
from headwater.client.codecs import Decoder
from headwater.client.effects import Batch, CloseReply, Emit, Flow, HttpReply, HttpRequest, Receive, Report, Sleep
from headwater.client.reading import Attempts, broken, check_size
from headwater.client.restarting import OnGone, check_on_gone, tell
from headwater.client.session import Session, lost, opened, pause, with_query
from headwater.errors import (
    ForbiddenError,
    HeadwaterError,
    MessageError,
    MethodNotAllowedError,
    NetworkError,
    OffsetGoneError,
    OffsetLostError,
    OffsetTrimmedError,
    ProtocolError,
    StreamGoneError,
    StreamNotFoundError,
    UnauthorizedError,
    UnknownRouteError,
)
from headwater.log.content import ContentKind
from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.positions import BEGINNING, NOW, Position
from headwater.protocol.problems import PROBLEM_MEDIA_TYPE
from headwater.protocol.streams.combined import FORM_MEDIA_TYPE, format_query
from headwater.protocol.streams.paths import RESERVED, check_path
from headwater.protocol.streams.sse import EventReader

T = TypeVar("T")


class StreamBatch(Batch[T], Generic[T], frozen=True):
    """Messages of one of several streams that arrived together, and the position after them.

    `closed`: the stream was closed, and this is its end. `deleted`: it was deleted or has expired. `forbidden`: the
    token may not read it any more. After each of these there are no more batches of this stream. A batch without
    messages, an end and `restarted` means that the reader has everything of the stream.
    """

    stream: str = ""
    deleted: bool = False
    forbidden: bool = False


class _Event(msgspec.Struct, rename="camel"):
    """A data or control event."""

    stream: str
    next_offset: str
    messages: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    is_text: bool = False
    up_to_date: bool = False
    stream_closed: bool = False
    deleted: bool = False
    forbidden: bool = False
    error: msgspec.Raw = msgspec.Raw()


class _Status(msgspec.Struct):
    """The part of a problem document that an HTTP response has in its head."""

    status: int = 500


class FollowedStream:
    """Where the reader is in one of the streams."""

    def __init__(self, path: str, position: Position, wanted: Any) -> None:
        self.path = path
        self.position = position
        self.is_over = False
        self.has_begun = False  # something of it has arrived
        self._wanted = wanted
        self._decoder: Decoder | None = None
        self._held_at: Position | None = None  # before an incomplete character at the end of what has arrived

    @property
    def place(self) -> Position:
        """The position from which a later read continues."""
        return self._held_at or self.position

    def take(self, kind: ContentKind, data: bytes, next_offset: str) -> tuple[list[Any], MessageError | None]:
        """Decode the data of an event and move behind it. An error is that of the message behind the items."""
        decoder = self._decoder = self._decoder or Decoder(kind, self._wanted)
        answer = decoder.answer(self.position.skip)
        answer.event(data)
        items = answer.rest()
        held = decoder.held_bytes
        after_items = Position(self.position.offset).after(max(0, answer.taken - held), next_offset)
        if answer.bad is not None:
            self.position = after_items if held <= answer.fed else self.place
            self._held_at = self._decoder = None  # another connection begins there
            return items, self._failure(answer.bad)
        if not held:
            self._held_at = None
        elif held <= answer.fed:
            self._held_at = after_items
        left, end = max(0, self.position.skip - answer.taken), self.position.end
        self.position = Position(next_offset).after(left, end if end > next_offset else "")
        return items, None

    @property
    def may_be_gone(self) -> bool:
        """Whether data can be gone at its position. At the beginning of a stream nothing is."""
        return self.position.offset not in (BEGINNING, NOW)

    def restart(self) -> None:
        """Begin again at the first data that is there."""
        self.position = Position()
        self._held_at = self._decoder = None

    def close(self) -> MessageError | None:
        """The stream ends here. The error is that of its last character."""
        self.is_over = True
        return None if self._held_at is None else self._failure("the stream ends in the middle of a UTF-8 character")

    def _failure(self, reason: str) -> MessageError:
        error = MessageError(f"stream {self.path!r}: {reason}", self.place)
        error.stream = self.path
        return error


class StreamFollowing:
    """The streams that are followed, which can change at any time, and their positions."""

    def __init__(
        self, session: Session, streams: Mapping[str, str | Position], wanted: Any, on_gone: OnGone = "raise"
    ) -> None:
        self._session = session
        self._on_gone = check_on_gone(on_gone)
        self._restarts = 0  # since a stream was up to date
        self._wanted = wanted
        self._url = f"{session.root}{RESERVED}/live"
        # Streams that are over stay until they are dropped, so that only the caller changes the dictionary, which may
        # be another thread.
        self._streams: dict[str, FollowedStream] = {}
        self._changed = object()  # another one after each change
        # The current connection has delivered something. Before that, a change does not end it, so that a program that
        # adds streams one by one gets messages meanwhile.
        self.has_arrived = False
        self._attempts = Attempts(session.retry.attempts)
        self._short = 0  # connections in a row that were very short
        for path, offset in streams.items():
            self.add(path, offset)

    def add(self, path: str, offset: str | Position) -> None:
        path = check_path(path.strip("/"))
        known = self._streams.get(path)
        if known is not None and not known.is_over:
            raise ValueError(f"{path!r} is followed already; drop it to follow it from another offset")
        position = Position.at(offset)
        if position.skip < 0 or (position.skip and position.offset == NOW):
            raise ValueError("skip counts messages after an offset")
        self._streams[path] = FollowedStream(path, position, self._wanted)
        self._changed = object()

    def drop(self, path: str) -> None:
        path = path.strip("/")
        if self._streams.pop(path, None) is None:
            raise ValueError(f"{path!r} is not followed")
        self._changed = object()

    @property
    def positions(self) -> dict[str, Position]:
        """The position of each stream that is followed: everything before it was delivered."""
        return {stream.path: stream.place for stream in self._current()}

    def _current(self) -> list[FollowedStream]:
        return [stream for stream in list(self._streams.values()) if not stream.is_over]

    # Connections

    def flow(self) -> Flow[None]:
        """Deliver batches until no stream is left. After an error, another flow continues."""
        while self._current():
            try:
                yield from self._connect()
            except UnauthorizedError:
                raise
            except HeadwaterError as error:
                yield CloseReply()
                if (stream := self._to_restart(error)) is not None:
                    yield from self._restart(stream, error)
                    continue
                ended = self._end_of(error)
                if ended is not None:
                    yield Emit(ended)
                    continue
                self._attempts.fail(error)
                yield from pause(self._session, error, self._attempts.failures)

    def _connect(self) -> Flow[None]:
        """Read one connection. If it was very short, wait before the next one."""
        session, started, changed = self._session, self._session.clock(), self._changed
        streams = {stream.path: stream for stream in self._current()}
        request = self._request(streams)
        self.has_arrived = False
        for stream in streams.values():
            yield from self._check_end(stream)
        try:
            reply = yield from opened(session, request, 200)
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise ProtocolError(f"expected server-sent events, got {reply.headers.get('content-type')}")
            self._attempts.contacted = True
            events = EventReader()
            while (changed is self._changed or not self.has_arrived) and (chunk := (yield Receive())):
                received = events.feed(chunk)
                for name, data in received:
                    yield from self._receive(request, streams, name, data)
                self.has_arrived = self.has_arrived or bool(received)
                check_size(request, events.pending_bytes)
        except NetworkError as error:
            if changed is self._changed and not self.has_arrived:
                raise
            if changed is self._changed and error.how != "timeout":  # silence is not a failure
                yield Report(error, 1, 0.0)
        yield CloseReply()
        if changed is not self._changed:
            return
        if not self.has_arrived and self._current():
            raise lost(request, "the event stream ended without an event")
        if session.clock() - started >= limits.SSE_SHORT_FEED_S or not self._current():
            self._short = 0
            return
        self._short += 1
        yield Sleep(session.retry.delay_s(self._short, session.chance()))

    def _request(self, streams: Mapping[str, FollowedStream]) -> HttpRequest:
        query = format_query({path: stream.position.offset for path, stream in streams.items()}, ids=False)
        timeouts = self._session.timeouts
        timeout_s = timeouts.sse_idle_s if self._attempts.contacted else timeouts.sse_first_s
        if len(query) <= limits.FOLLOW_URL_BYTES_MAX:
            return HttpRequest("GET", f"{self._url}?{query}", read_timeout_s=timeout_s)
        headers = {"content-type": FORM_MEDIA_TYPE}
        return HttpRequest("POST", self._url, headers, query.encode(), read_timeout_s=timeout_s)

    def _check_end(self, stream: FollowedStream) -> Flow[None]:
        """Messages up to the end of a position were read before. If the server was restored, it refuses an end that is
        lost."""
        end = stream.position.end
        if end and not stream.has_begun:
            url = with_query(self._session.url_of(stream.path), offset=end, until=end)
            try:
                yield from opened(self._session, HttpRequest("GET", url), 200)
            except HeadwaterError as error:
                error.stream = stream.path
                raise
            yield CloseReply()

    def _to_restart(self, error: HeadwaterError) -> FollowedStream | None:
        """The stream whose data at its position is gone, if it may begin again."""
        stream = self._streams.get(error.stream)
        if self._on_gone == "raise" or not isinstance(error, OffsetGoneError) or stream is None or stream.is_over:
            return None
        return stream if stream.may_be_gone else None

    def _restart(self, stream: FollowedStream, error: HeadwaterError) -> Flow[None]:
        yield from tell(self._on_gone, self._session.url_of(stream.path), error)
        self._restarts += 1
        if self._restarts > len(self._streams):  # a server that trims faster than it is read
            yield from pause(self._session, error, 1)
        stream.restart()
        yield Emit(StreamBatch([], stream.position, stream=stream.path, restarted=True))

    def _end_of(self, error: HeadwaterError) -> StreamBatch[Any] | None:
        """The end of a stream that a request was refused for, if it was followed before; None if the error is not
        that."""
        if isinstance(error, StreamNotFoundError | UnknownRouteError | MethodNotAllowedError) and not error.stream:
            raise ProtocolError("the server does not follow many streams over one connection") from error
        stream = self._streams.get(error.stream)
        if stream is None or not stream.has_begun or isinstance(error, OffsetLostError | OffsetTrimmedError):
            return None
        forbidden = isinstance(error, ForbiddenError)
        if not forbidden and not isinstance(error, StreamNotFoundError | StreamGoneError | OffsetGoneError):
            return None
        stream.is_over = True
        return StreamBatch([], stream.place, stream=stream.path, deleted=not forbidden, forbidden=forbidden)

    # Events

    def _receive(
        self, request: HttpRequest, streams: Mapping[str, FollowedStream], name: bytes, data: bytes
    ) -> Flow[None]:
        try:
            event = msgspec.json.decode(data, type=_Event)
        except UNREADABLE as error:
            raise broken(request, f"unreadable event: {reason_of(error)}") from None
        stream = streams.get(event.stream)
        if stream is None:
            raise broken(request, f"an event of the stream {event.stream[:80]!r}, which was not asked for")
        if stream is not self._streams.get(event.stream) or stream.is_over:
            return  # it was dropped
        stream.has_begun = True
        self._attempts.failures = 0
        if event.up_to_date:
            self._restarts = 0
        if name == b"data":
            yield from self._deliver(request, stream, event)
        elif name == b"control":
            yield from self._control(request, stream, event)
        self._attempts.broken = 0

    def _deliver(self, request: HttpRequest, stream: FollowedStream, event: _Event) -> Flow[None]:
        kind, data = _content(request, event)
        items, error = stream.take(kind, data, event.next_offset)
        if items:
            yield Emit(StreamBatch(items, stream.place, stream=stream.path))
        if error is not None:
            raise error

    def _control(self, request: HttpRequest, stream: FollowedStream, event: _Event) -> Flow[None]:
        if bytes(event.error):
            raise _failure(request, stream.path, bytes(event.error))
        if not stream.position.skip:
            stream.position = Position(event.next_offset)  # of a stream that began at its tail
        error = stream.close() if event.stream_closed else None
        stream.is_over = stream.is_over or event.deleted or event.forbidden
        yield Emit(
            StreamBatch(
                [],
                stream.place,
                up_to_date=event.up_to_date,
                closed=event.stream_closed,
                stream=stream.path,
                deleted=event.deleted,
                forbidden=event.forbidden,
            )
        )
        if error is not None:
            raise error


def _content(request: HttpRequest, event: _Event) -> tuple[ContentKind, bytes]:
    """The data of an event as it is in the stream."""
    if messages := bytes(event.messages):
        return ContentKind.JSON, messages
    if event.text is not None:
        return ContentKind.TEXT, event.text.encode()
    kind = ContentKind.TEXT if event.is_text else ContentKind.BINARY
    try:
        return kind, binascii.a2b_base64(event.base64 or "", strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise broken(request, f"unreadable data event: {error}") from None


def _failure(request: HttpRequest, path: str, document: bytes) -> HeadwaterError:
    """The error of one stream."""
    try:
        status = msgspec.json.decode(document, type=_Status).status
    except UNREADABLE as unreadable:
        return broken(request, f"unreadable error of the stream {path!r}: {reason_of(unreadable)}")
    error = error_of(request, HttpReply(status, {"content-type": PROBLEM_MEDIA_TYPE}, document))
    error.stream = path
    error.detail = f"stream {path!r}: {error.detail}"
    return error
