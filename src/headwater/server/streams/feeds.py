"""A feed: the server-sent events of one reader, which catches up, is live, and catches up again if it falls behind.

Live readers get frames that are encoded once for all of them. If a connection does not drain, nothing is buffered for
it: when it has drained, it reads from the store until it has caught up again.

A large event is written in pieces as the connection drains, and nothing else is written before its last piece.
"""

from __future__ import annotations

import asyncio
import logging
import random

from headwater.engine.messages import Ended, ReadMore, ReadReply, Update
from headwater.errors import HeadwaterError, StreamGoneError, StreamNotFoundError
from headwater.limits import SSE_JOIN_BYTES_MAX, SSE_LIFETIME_JITTER
from headwater.protocol.streams import sse
from headwater.protocol.streams.cursors import interval_at
from headwater.server.http import Frame, Sink
from headwater.server.service import Service
from headwater.server.streams.frames import EventFrames, UpdateFrames
from headwater.server.streams.replies import offset_text

log = logging.getLogger("headwater.server")

_KEEP_ALIVE = Frame(sse.KEEP_ALIVE)
_frames = UpdateFrames()


class FeedSession:
    __slots__ = (
        "_catching_up",
        "_closed",
        "_cursor",
        "_deleted",
        "_ended",
        "_event",
        "_event_end",
        "_first",
        "_lifetime_s",
        "_opened_s",
        "_piece",
        "_position",
        "_service",
        "_sink",
        "_spoke_s",
        "_stream",
        "_tail",
        "_until",
        "_waiting",
    )

    def __init__(self, service: Service, first: ReadReply, cursor: int) -> None:
        self._service = service
        self._stream = first.stream
        self._first: ReadReply | None = first
        self._position = first.start
        self._until = first.until
        self._cursor = cursor
        self._tail = first.stream.tail
        self._closed = first.stream.closed
        self._opened_s = self._spoke_s = 0.0
        # Feeds that were opened together end one after the other, so that their readers do not reconnect in one wave.
        self._lifetime_s = service.limits.sse_lifetime_s * (1 - SSE_LIFETIME_JITTER * random.random())
        self._sink: Sink | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._event: EventFrames | None = None  # a large event that is being written
        self._event_end = 0  # the position after it
        self._piece = 0  # the next piece
        self._waiting = False  # until its turn
        self._deleted = False
        self._ended = False

    def open(self, sink: Sink, now_s: float) -> None:
        """Write the first event at once: the existing data, or that there is none yet."""
        if self._ended:  # its token expired before it was opened
            sink.end()
            return
        self._sink = sink
        self._opened_s = self._spoke_s = now_s
        first, self._first = self._first, None
        try:
            info = self._service.engine.follow(self._stream.id, self)
        except HeadwaterError as error:
            self._fail(error)
            return
        self._tail, self._closed = info.tail, info.closed
        if first is not None:
            self._advance(first)
        if self._behind:
            self._read_on()

    @property
    def _behind(self) -> bool:
        """Whether there is data to read and no read is in progress."""
        return self._position < self._tail and not self._ended and self._event is None and self._catching_up is None

    # From the engine

    def deliver(self, update: Update) -> None:
        if update.end > self._tail:
            self._tail = update.end
        if update.closed:
            self._closed = True
        sink = self._sink
        if self._ended or self._catching_up is not None or self._event is not None or sink is None:
            return
        if update.start != self._position or self._until is not None or sink.blocked:
            if update.end > self._position or update.closed:  # otherwise it was already read
                self._read_on()
        elif len(update.data) > SSE_JOIN_BYTES_MAX:
            self._begin_update(update)
        else:
            sink.write(_frames.joined(update, self._cursor))
            self._position = update.end
            if update.closed:
                self.finish()

    def ended(self, reason: Ended) -> None:
        if reason is not Ended.DELETED:
            self.finish()
        elif self._event is not None:
            self._deleted = True  # sent after the current event
        else:
            self._tell_deletion()

    def _tell_deletion(self) -> None:
        if self._sink is not None and not self._ended:
            self._sink.write(Frame(sse.deletion_frame(offset_text(self._stream, self._position))))
        self.finish()

    def _fail(self, error: HeadwaterError) -> None:
        log.info("a feed ended: %s", error)
        if isinstance(error, StreamNotFoundError | StreamGoneError):
            self._tell_deletion()
        else:
            self.finish()

    # From the connection

    def drained(self) -> None:
        if self._event is not None:
            self._write_on_later()
        elif self._behind or (self._closed and not self._ended and self._catching_up is None):
            self._read_on()

    def tick(self, now_s: float) -> None:
        limits = self._service.limits
        if self._event is not None:
            self._spoke_s = now_s
        elif now_s - self._opened_s >= self._lifetime_s:
            self.finish()
        elif now_s - self._spoke_s >= limits.sse_keep_alive_s and self._sink is not None and not self._sink.blocked:
            self._spoke_s = now_s
            self._sink.write(_KEEP_ALIVE)

    def finish(self) -> None:
        if not self._ended:
            self.cancel()
            if self._sink is not None:
                self._sink.end()

    def cancel(self) -> None:
        self._ended = True
        self._service.engine.unfollow(self._stream.id, self)
        if self._catching_up is not None and self._catching_up is not asyncio.current_task():
            self._catching_up.cancel()

    # Catching up

    def _read_on(self) -> None:
        if self._sink is not None and not self._sink.blocked:
            self._catching_up = asyncio.create_task(self._catch_up(self._sink))

    async def _catch_up(self, sink: Sink) -> None:
        engine, limits = self._service.engine, self._service.limits
        try:
            while not self._ended and self._event is None and not sink.blocked:
                end = self._tail if self._until is None else self._until
                if self._position >= end and not self._closed:
                    break
                asked = ReadMore(self._stream.id, self._position, self._until, limits.sse_chunk_bytes)
                reply = await engine.read_more(asked)
                if not self._ended:
                    self._advance(reply)
        except HeadwaterError as error:
            self._fail(error)
        except Exception:
            log.exception("a feed failed")
            self.finish()
        finally:
            self._catching_up = None

    def _advance(self, reply: ReadReply) -> None:
        """Send the data of a read, and whether it reaches the tail, which may be beyond the last update."""
        self._tail = max(self._tail, reply.stream.tail)
        self._closed = self._closed or reply.stream.closed
        if len(reply.data) > SSE_JOIN_BYTES_MAX:
            self._begin(self._service.events.of_reply(reply), reply.next)
        else:
            self._position = reply.next
            offset = offset_text(self._stream, reply.next)
            data = sse.data_frame(reply.stream.kind, reply.data, offset) if reply.data else b""
            self._write_control(data, with_id=not data)

    def _write_control(self, data: bytes = b"", *, with_id: bool = False) -> None:
        """Write the control event with the offset after the data."""
        if self._sink is None:
            return
        at_tail = self._position == self._tail
        closed = at_tail and self._closed
        cursor = max(self._cursor, interval_at(self._service.now_ms))
        next_offset = offset_text(self._stream, self._position)
        control = sse.control_frame(next_offset, cursor=cursor, up_to_date=at_tail, closed=closed, with_id=with_id)
        self._sink.write(Frame(data + control))
        if closed or (self._until is not None and self._position >= self._until):
            self.finish()

    # Large events

    def _begin_update(self, update: Update) -> None:
        try:
            event = self._service.events.of_update(update, self._service.engine.hold)
        except HeadwaterError as error:
            self._fail(error)
        else:
            self._begin(event, update.end)

    def _begin(self, event: EventFrames, end: int) -> None:
        self._event, self._event_end, self._piece = event, end, 0
        self._write_on_later()

    def _write_on_later(self) -> None:
        """Schedule the next piece, once."""
        if not self._waiting:
            self._waiting = True
            self._service.turns.ask(self._write_on)

    def _write_on(self) -> None:
        """Write the next piece if the connection has room; otherwise `drained` schedules it."""
        self._waiting = False
        if self._ended or self._event is None or self._sink is None or self._sink.blocked:
            return
        self._sink.write(self._event.frame(self._piece))
        self._piece += 1
        if self._piece < self._event.pieces:
            self._write_on_later()
            return
        self._event, self._position = None, self._event_end
        self._write_control()
        if self._deleted:
            self._tell_deletion()
        elif self._behind:
            self._read_on()
