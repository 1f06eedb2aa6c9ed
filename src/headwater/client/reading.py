"""Reading a stream: every message once and in order, across lost connections.

Theory of operation
===================

A read catches up with plain requests, which are bounded, compressed and cacheable, and goes live at the tail. Its
position is an offset from the server and the number of items delivered after it. The position only moves when items
are delivered, so after any failure the next request starts exactly there.

    state         next request        at the tail
    ------------  ------------------  ---------------------
    READING       plain               the read ends
    TOWARDS_FEED  plain               server-sent events
    TOWARDS_POLL  plain               long-poll
    FEEDING       server-sent events  stays
    POLLING       long-poll           stays
    ENDED         none

A read that is not live begins in `READING`, others in `TOWARDS_FEED` or `TOWARDS_POLL`. `NO_FEEDS` makes a live read
use long-poll from then on, because server-sent events do not work: the response is not an event stream, or two
consecutive connections ended without a complete event (five if events have worked before). For text streams it happens
at the first response, because server-sent events cannot transmit carriage returns. `LEAVE_FEED` makes it use plain
requests for what a feed cannot deliver: an event that is too large for memory, data past `until`, or a deletion, for
which a plain request gets the right error.

`RESTART` makes it begin again at the first data that is there, if the data at its position is gone and `on_gone` allows
it.

Any other error is not an event of the table: the next request is the same. `Attempts` decides which errors are final.

`Reading._move` is the only way from one state to another. An event that the table does not list for a state is a defect
and raises `ImpossibleTransitionError`.
"""

from __future__ import annotations

import binascii
import enum
from typing import Any, Literal, TypeAlias

import msgspec

from headwater import limits
from headwater.client.answers import required
from headwater.client.codecs import BytesAnswer, Decoder, JsonAnswer
from headwater.client.effects import Batch, CloseReply, Emit, Flow, HttpReply, HttpRequest, Receive, Report, Sleep
from headwater.client.restarting import OnGone, check_on_gone, tell
from headwater.client.session import Session, lost, opened, pause, with_query
from headwater.errors import (
    HeadwaterError,
    MessageError,
    NetworkError,
    OffsetGoneError,
    ProtocolError,
    UnauthorizedError,
)
from headwater.log.content import DEFAULT_CONTENT_TYPE, ContentKind, kind_of
from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.positions import BEGINNING, NOW, Position
from headwater.protocol.streams import headers
from headwater.protocol.streams.sse import EventReader
from headwater.transitions import Transitions, next_state

LiveMode: TypeAlias = Literal["long-poll", "sse"] | bool
"""How to follow a stream: False not at all, True with the mode that works, or only with the given mode."""


class ReadState(enum.Enum):
    READING = enum.auto()
    TOWARDS_FEED = enum.auto()
    TOWARDS_POLL = enum.auto()
    FEEDING = enum.auto()
    POLLING = enum.auto()
    ENDED = enum.auto()


class ReadEvent(enum.Enum):
    TAIL = enum.auto()  # everything up to the tail was delivered
    NO_FEEDS = enum.auto()  # server-sent events do not work for this read
    LEAVE_FEED = enum.auto()  # the feed cannot deliver what comes next
    RESTART = enum.auto()  # the data at the position is gone, and the read begins again
    END = enum.auto()  # everything that was asked for was delivered


READ_TRANSITIONS: Transitions[ReadState, ReadEvent] = {
    ReadState.READING: {
        ReadEvent.TAIL: ReadState.ENDED,
        ReadEvent.RESTART: ReadState.READING,
        ReadEvent.END: ReadState.ENDED,
    },
    ReadState.TOWARDS_FEED: {
        ReadEvent.TAIL: ReadState.FEEDING,
        ReadEvent.NO_FEEDS: ReadState.TOWARDS_POLL,
        ReadEvent.RESTART: ReadState.TOWARDS_FEED,
        ReadEvent.END: ReadState.ENDED,
    },
    ReadState.TOWARDS_POLL: {
        ReadEvent.TAIL: ReadState.POLLING,
        ReadEvent.RESTART: ReadState.TOWARDS_POLL,
        ReadEvent.END: ReadState.ENDED,
    },
    ReadState.FEEDING: {
        ReadEvent.TAIL: ReadState.FEEDING,
        ReadEvent.NO_FEEDS: ReadState.POLLING,
        ReadEvent.LEAVE_FEED: ReadState.TOWARDS_FEED,
        ReadEvent.RESTART: ReadState.TOWARDS_FEED,
        ReadEvent.END: ReadState.ENDED,
    },
    ReadState.POLLING: {
        ReadEvent.TAIL: ReadState.POLLING,
        ReadEvent.RESTART: ReadState.TOWARDS_POLL,
        ReadEvent.END: ReadState.ENDED,
    },
    ReadState.ENDED: {},
}

BEGINNINGS: dict[LiveMode, ReadState] = {
    False: ReadState.READING,
    True: ReadState.TOWARDS_FEED,
    "sse": ReadState.TOWARDS_FEED,
    "long-poll": ReadState.TOWARDS_POLL,
}


class Attempts(msgspec.Struct):
    """The failures of a read in a row. It decides which error is final."""

    attempts_max: int  # as long as the server has never responded
    contacted: bool = False
    failures: int = 0
    broken: int = 0  # unreadable responses

    def fail(self, error: HeadwaterError) -> None:
        """Count a failure, or raise the error if it is final."""
        if isinstance(error, ProtocolError) and error.retryable:
            self.broken += 1
            if self.broken >= limits.READ_BROKEN_ANSWERS_MAX:
                raise error
        elif not error.retryable:
            raise error
        self.failures += 1
        if not self.contacted and self.failures >= self.attempts_max:
            raise error


class FeedRecord(msgspec.Struct):
    """What the connections for server-sent events have shown so far."""

    events: int = 0  # control events received
    failures: int = 0  # connections in a row that ended without one
    short: int = 0  # connections in a row that were very short

    @property
    def proven(self) -> bool:
        return self.events > 0

    def received(self) -> None:
        self.events += 1
        self.failures = 0

    def shows_no_feeds(self, error: HeadwaterError) -> bool:
        """Count a connection that ended without a complete event. Returns whether to give up server-sent events.

        A server that cannot be reached does not count, and more failures are allowed if events have worked before.
        """
        broken = isinstance(error, ProtocolError)
        refused = (broken and not error.retryable) or error.status in (400, 405, 406, 415, 501)
        lost = isinstance(error, NetworkError) and error.how != "connect"
        if not (refused or broken or lost or error.status in (502, 503, 504)):
            return False
        self.failures += 1
        return refused or self.failures >= (limits.SSE_FAILURES_PROVEN_MAX if self.proven else limits.SSE_FAILURES_MAX)


class _Control(msgspec.Struct, rename="camel"):
    """The control event that follows the data in a feed."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False
    stream_deleted: bool = False  # an extension of Headwater: the last event of a stream that was deleted


class Reading:
    """One read of one stream: its position and its settings."""

    def __init__(
        self,
        session: Session,
        url: str,
        wanted: Any,
        position: Position,
        until: str | None,
        live: LiveMode,
        piece_bytes: int = limits.READ_PIECE_BYTES,
        on_gone: OnGone = "raise",
    ) -> None:
        if live not in BEGINNINGS:
            raise ValueError(f"live is True, False, 'long-poll' or 'sse', not {live!r}")
        if position.skip < 0 or (position.skip and position.offset == NOW):
            raise ValueError("skip counts messages after an offset")
        self._session = session
        self._url = url
        self._wanted = wanted
        self.position = position
        self._until = until
        self._live = live
        self._piece_bytes = piece_bytes
        self._on_gone = check_on_gone(on_gone)
        self._restarts = 0  # since the read was up to date
        self._decoder: Decoder | None = None
        self._cursor: str | None = None
        self.state = BEGINNINGS[live]
        self._attempts = Attempts(session.retry.attempts)
        self._feeds = FeedRecord()
        self._was_up_to_date = False  # the last batch said that the reader is up to date
        self._held_at: Position | None = None
        self._prefetched: HttpReply | None = None
        self._end = ""  # the offset at the end of the current response
        self._begun_at = ""  # where the read began, until a batch has told it
        self._must_revalidate = False  # a cache may have the beginning as it was before the read began again

    def _move(self, event: ReadEvent) -> None:
        self.state = next_state(READ_TRANSITIONS, self.state, event)

    def flow(self) -> Flow[None]:
        if self._is_at_until():
            self._move(ReadEvent.END)
        while self.state is not ReadState.ENDED:
            try:
                if self.state is ReadState.FEEDING:
                    yield from self._feed()
                else:
                    yield from self._piece()
            except UnauthorizedError:
                raise
            except HeadwaterError as error:
                self._prefetched = None
                yield CloseReply()
                if self._may_restart(error):
                    yield from self._restart(error)
                    continue
                self._attempts.fail(error)
                yield from pause(self._session, error, self._attempts.failures)

    def _is_at_until(self) -> bool:
        """Whether the read ends where it begins."""
        begin, until = self.position.offset, self._until
        if until is None or begin == NOW:
            return False
        return until == BEGINNING or (begin != BEGINNING and until <= begin)

    def _may_restart(self, error: HeadwaterError) -> bool:
        """Whether the data at the position is gone, and the read may begin again. At the beginning nothing is gone."""
        is_gone = isinstance(error, OffsetGoneError) and self.position.offset not in (BEGINNING, NOW)
        return is_gone and self._on_gone != "raise"

    def _restart(self, error: HeadwaterError) -> Flow[None]:
        """Begin again at the first data that is there. A server that trims faster than it is read is asked slowly."""
        yield from tell(self._on_gone, self._url, error)
        self._restarts += 1
        if self._restarts > 1:
            yield from pause(self._session, error, self._restarts - 1)
        self._move(ReadEvent.RESTART)
        self.position = Position()
        self._decoder = self._cursor = self._held_at = None
        self._was_up_to_date = False
        self._must_revalidate = True
        yield Emit(Batch([], self.position, restarted=True))

    # One bounded response

    def _piece(self) -> Flow[None]:
        polling = self.state is ReadState.POLLING
        request = self._request("long-poll" if polling else None)
        started = self._session.clock()
        reply, self._prefetched = self._prefetched, None
        if reply is None:
            reply = yield from self._open(request)
        next_offset = required(request, reply, headers.NEXT_OFFSET)
        self._begin_at(reply.headers.get(headers.FIRST_OFFSET, ""))
        if polling:
            self._cursor = reply.headers.get(headers.CURSOR)
        if self._until is not None and self.position.offset == NOW and self._until <= next_offset:
            self.position = Position(next_offset)  # the read has already passed `until`
            self._move(ReadEvent.END)
            return
        answer = self._decoded(reply).answer(self.position.skip)
        self._end = next_offset
        bounded = self._until is not None and next_offset > self._until  # the server does not know `until`
        if reply.status == 200:
            yield from self._receive(request, answer, partly=not bounded)
        if bounded:
            yield from self._trim(answer, next_offset)
            return
        up_to_date = reply.headers.get(headers.UP_TO_DATE, "").lower() == "true"
        closed = headers.parse_closed(reply.headers)
        moved = next_offset != self.position.offset
        if moved and not (up_to_date or closed or next_offset == self._until or self.position.end):
            yield from self._prefetch(next_offset)
        yield from self._arrive(answer, next_offset, up_to_date=up_to_date or closed, closed=closed)
        waited = self._session.clock() - started >= limits.READ_EMPTY_POLL_S if polling else up_to_date
        if not (moved or waited or self.state is ReadState.ENDED):
            yield Sleep(limits.READ_EMPTY_POLL_S)  # the server neither waits nor advances the offset

    def _begin_at(self, first_offset: str) -> None:
        """Replace the position -1 by the first offset. The beginning moves if data is trimmed, so messages must not be
        counted from -1."""
        self._must_revalidate = False
        if first_offset and self.position.offset == BEGINNING:
            self.position = Position(first_offset, self.position.skip, self.position.end)
            self._begun_at = first_offset

    def _prefetch(self, offset: str) -> Flow[None]:
        """Request the next response before this one is decoded and delivered."""
        try:
            self._prefetched = yield from self._open(self._request(None, offset))
        except HeadwaterError:
            yield CloseReply()  # it is requested again later

    def _receive(self, request: HttpRequest, answer: JsonAnswer | BytesAnswer, *, partly: bool) -> Flow[None]:
        while chunk := (yield Receive()):
            answer.feed(chunk)
            if partly and answer.size >= self._piece_bytes:
                yield from self._deliver(answer, answer.some())
            check_size(request, answer.size)

    def _open(self, request: HttpRequest) -> Flow[HttpReply]:
        reply = yield from opened(self._session, request, 200, 204)
        self._attempts.contacted = True
        return reply

    def _request(self, live: str | None, offset: str | None = None) -> HttpRequest:
        timeouts = self._session.timeouts
        waits = {
            None: timeouts.answer_s,
            "long-poll": timeouts.long_poll_s,
            "sse": timeouts.sse_idle_s if self._feeds.proven else timeouts.sse_first_s,
        }
        cursor = self._cursor if live else None
        until = None if self.position.offset == NOW else self._until
        if self.position.end and offset is None and live is None:
            # Messages up to this end were read before. If the server was restored, it refuses an end that is lost.
            until = min(self.position.end, until or self.position.end)
        url = with_query(self._url, offset=offset or self.position.offset, live=live, until=until, cursor=cursor)
        request_headers = {"cache-control": "no-cache"} if self._must_revalidate else {}
        return HttpRequest("GET", url, request_headers, read_timeout_s=waits[live])

    def _decoded(self, reply: HttpReply) -> Decoder:
        if self._decoder is None:
            content_type = reply.headers.get("content-type", DEFAULT_CONTENT_TYPE)
            self._decoder = Decoder(kind_of(content_type), self._wanted)
            is_towards_feed = self.state is ReadState.TOWARDS_FEED
            if self._live is True and is_towards_feed and self._decoder.kind is ContentKind.TEXT:
                self._move(ReadEvent.NO_FEEDS)
        return self._decoder

    # Delivery; nothing else moves the position

    def _deliver(self, answer: JsonAnswer | BytesAnswer, items: list[Any]) -> Flow[None]:
        """Deliver a part of a response: the offset stays, and the count of items after it grows."""
        if answer.taken > self.position.skip:
            self.position = self._after(answer.taken)
            self._mark_held(answer)
            if items:
                yield from self._emit(items)
        if answer.bad is not None:
            raise MessageError(answer.bad, self._place())

    def _mark_held(self, answer: JsonAnswer | BytesAnswer) -> None:
        """The position before an incomplete character, if the data ends with one. A later read must start before it."""
        held = self._decoder.held_bytes if self._decoder is not None else 0
        if not held:
            self._held_at = None
        elif held <= answer.fed:
            self._held_at = self._after(answer.taken - held)

    def _after(self, count: int) -> Position:
        """The position after this many items of the response."""
        return Position(self.position.offset).after(count, self._end)

    def _arrive(
        self, answer: JsonAnswer | BytesAnswer, next_offset: str, *, up_to_date: bool, closed: bool
    ) -> Flow[None]:
        """Deliver the rest of a response: the position moves to the offset at its end."""
        items = answer.rest()
        if answer.bad is not None:
            yield from self._deliver(answer, items)
        self._mark_held(answer)
        if next_offset != self.position.offset or not self._is_for_feeds:  # a feed can send an event without data
            self._attempts.broken = 0
        left = max(0, self.position.skip - answer.taken)
        self.position = Position(next_offset).after(left, self.position.end if self.position.end > next_offset else "")
        self._attempts.failures = 0
        if closed or next_offset == self._until:
            self._move(ReadEvent.END)
        elif up_to_date:
            self._restarts = 0
            self._move(ReadEvent.TAIL)
        if items or closed or (up_to_date and not self._was_up_to_date) or next_offset == self._until:
            yield from self._emit(items, up_to_date=up_to_date, closed=closed)
        if closed and self._held_at is not None:
            raise MessageError("the stream ends in the middle of a UTF-8 character", self._held_at)

    def _emit(self, items: list[Any], *, up_to_date: bool = False, closed: bool = False) -> Flow[None]:
        self._was_up_to_date = up_to_date
        begin, self._begun_at = self._begun_at, ""
        yield Emit(Batch(items, self._place(), up_to_date, closed, begin=begin))

    def _place(self) -> Position:
        """The position from which a later read continues."""
        return self._held_at or self.position

    # An `until` that the server does not support

    def _trim(self, answer: JsonAnswer | BytesAnswer, past: str) -> Flow[None]:
        """Remove the items after `until` from a response that goes past it."""
        until = self._until or past
        yield CloseReply()
        items = answer.cut((yield from self._surplus(until, past)))
        if answer.bad is not None:
            yield from self._deliver(answer, items)
        self._mark_held(answer)
        self.position = Position(until)
        self._move(ReadEvent.END)
        yield from self._emit(items)

    def _surplus(self, until: str, past: str) -> Flow[int]:
        """Count the items between two offsets, even if no response of the server ends at one of them.

        It reads from both offsets until two responses end at the same offset, which happens at the tail at the latest.
        """
        surplus = 0
        for _ in range(limits.READ_TRIM_ANSWERS_MAX):
            if until == past:
                return surplus
            if until < past:
                size, until = yield from self._size(until)
                surplus += size
            else:
                size, past = yield from self._size(past)
                surplus -= size
        raise ProtocolError("the server does not know `until`, and the stream grows too fast to do without")

    def _size(self, offset: str) -> Flow[tuple[int, str]]:
        """The number of items in a response, and the offset at its end."""
        timeout_s = self._session.timeouts.answer_s
        request = HttpRequest("GET", with_query(self._url, offset=offset), read_timeout_s=timeout_s)
        reply = yield from self._open(request)
        answer = Decoder(self._decoded(reply).kind, bytes).answer(0)
        while chunk := (yield Receive()):
            answer.feed(chunk)
            if answer.size >= self._piece_bytes:
                answer.some()
            check_size(request, answer.size)
        answer.rest()
        yield CloseReply()
        return answer.taken, required(request, reply, headers.NEXT_OFFSET)

    # Server-sent events

    @property
    def _is_for_feeds(self) -> bool:
        return self.state in (ReadState.FEEDING, ReadState.TOWARDS_FEED)

    def _feed(self) -> Flow[None]:
        """Read one connection. If it was very short, wait before the next one."""
        session, feeds = self._session, self._feeds
        started, events_before = session.clock(), feeds.events
        request = self._request("sse")
        try:
            yield from self._connection(request)
            if feeds.events == events_before and self.state is not ReadState.ENDED:
                raise lost(request, "the event stream ended without an event")
        except HeadwaterError as error:
            if feeds.events == events_before or not isinstance(error, NetworkError):
                if self._live is True and feeds.shows_no_feeds(error):
                    self._give_up_feeds(error)
                raise
            if error.how != "timeout":  # on a stream without appends, silence is not a failure
                yield Report(error, 1, 0.0)
        yield CloseReply()
        if self.state is not ReadState.FEEDING or session.clock() - started >= limits.SSE_SHORT_FEED_S:
            feeds.short = 0
            return
        feeds.short += 1
        yield Sleep(session.retry.delay_s(feeds.short, session.chance()))

    def _give_up_feeds(self, error: HeadwaterError) -> None:
        self._move(ReadEvent.NO_FEEDS)
        error.retryable = True  # by long-poll

    def _connection(self, request: HttpRequest) -> Flow[None]:
        reply = yield from self._open(request)
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise ProtocolError(f"expected server-sent events, got {reply.headers.get('content-type')}")
        encoded = reply.headers.get(headers.SSE_DATA_ENCODING) == "base64"
        events = EventReader()
        answer = self._fresh_answer()
        while chunk := (yield Receive()):
            for name, data in events.feed(chunk):
                if name == b"data":
                    _take(request, answer, data, encoded=encoded)
                    if answer.size >= self._piece_bytes:
                        yield from self._deliver(answer, answer.some())
                    check_size(request, answer.size)
                elif name == b"control":
                    yield from self._receive_control(request, answer, data)
                    if self.state is not ReadState.FEEDING:
                        return
                    answer = self._fresh_answer()
            if events.pending_bytes >= self._piece_bytes:
                self._move(ReadEvent.LEAVE_FEED)  # the event is too large; plain requests deliver it in parts
                return

    def _receive_control(self, request: HttpRequest, answer: JsonAnswer | BytesAnswer, data: bytes) -> Flow[None]:
        """Handle a control event: deliver the data before it. Data past `until` is read with plain requests instead."""
        try:
            control = msgspec.json.decode(data, type=_Control)
        except UNREADABLE as error:
            raise broken(request, f"unreadable control event: {reason_of(error)}") from None
        self._feeds.received()
        if control.stream_deleted:
            self._move(ReadEvent.LEAVE_FEED)  # a plain request gets the right error: 404, or 410 if forks keep the path
            return
        self._cursor = control.stream_cursor
        if self._until is not None and control.stream_next_offset > self._until:
            self._move(ReadEvent.LEAVE_FEED)
            return
        closed = control.stream_closed
        up_to_date = control.up_to_date or closed
        yield from self._arrive(answer, control.stream_next_offset, up_to_date=up_to_date, closed=closed)

    def _fresh_answer(self) -> JsonAnswer | BytesAnswer:
        if self._decoder is None:
            raise ProtocolError("a feed starts after a response with the content type")
        self._end = ""  # the event after the data has it
        return self._decoder.answer(self.position.skip)


def check_size(request: HttpRequest, size_bytes: int) -> None:
    """Refuse a message that is too long before it fills the memory."""
    if size_bytes > limits.READ_MESSAGE_BYTES_MAX:
        error = ProtocolError(f"a message is longer than {limits.READ_MESSAGE_BYTES_MAX} bytes")
        error.url = request.url
        raise error


def broken(request: HttpRequest, reason: str) -> ProtocolError:
    """The error for an unreadable response. It may be a transmission error; after several in a row the read fails."""
    error = ProtocolError(reason)
    error.url = request.url
    error.retryable = True
    return error


def _take(request: HttpRequest, answer: JsonAnswer | BytesAnswer, data: bytes, *, encoded: bool) -> None:
    if encoded:
        try:
            data = binascii.a2b_base64(data.replace(b"\n", b"").replace(b"\r", b""), strict_mode=True)
        except binascii.Error as error:
            raise broken(request, f"unreadable data event: {error}") from None
    answer.event(data)
