"""A follower: a cursor over one stream, from catching up to live and back, until it ends.

Theory of operation
===================

A follower passes the data of a stream to its consumer as slices: every byte once, in order, and then one end. Its state
is one of:

    state    meaning
    -------  -------------------------------------------------------------------------------------------------------
    NEW      it was created, and the engine does not know it yet
    LIVE     the consumer has everything up to the tail: the next update is passed to it directly
    READING  the consumer lacks something and is ready for it: a task reads from the store, one slice at a time
    BLOCKED  the consumer lacks something and is not ready: nothing is read or kept for it until it calls `resume`
    ENDED    the consumer was told the reason, or has closed the follower

    event     meaning
    --------  ------------------------------------------------------------------------------------------------------
    CAUGHT_UP the consumer has taken the last slice that there is
    MORE      there is something to read, and the consumer is ready
    REFUSED   there is something, and the consumer is not ready, or it refused a slice
    OVER      the stream was closed and read to its end, or deleted; `until` is reached; the server stops; a read
              failed; or the consumer does not want more

The consumer decides when it takes something. `Consumer.ready` is asked before a read, so that nothing is read in vain,
and `Consumer.take` may refuse a slice: a connection can fill up at any time. A slice that was refused is not kept.
When the consumer is ready again, it calls `resume`, and the follower reads what it missed, even if that is only that
the stream was closed. So memory does not grow with slow consumers, and a consumer that takes with awaits (`Pulled`) is
one that is not ready in between.

An update is passed on directly only if it begins where the follower is. Any other update only moves the known tail: it
may be older than a read, or come after updates that were merged or dropped. Reads may be slow, and the state of a
stream may be old: what reads and updates say about the tail and the closing of the stream is combined, never replaced.

The error of a read ends the follower with that error, for example if its position has been removed from the stream. If
it says that the stream does not exist any more, the reason is `Ended.DELETED`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol
from weakref import WeakValueDictionary

from headwater.engine.messages import Ended, ReadMore, ReadReply, Reason, Slice, VisibleStream
from headwater.errors import HeadwaterError, InternalError, StreamGoneError, StreamNotFoundError
from headwater.limits import POSITION_MAX, SLICE_KEPT_BYTES_MAX, SLICES_KEPT
from headwater.log.offsets import Offset
from headwater.transitions import ImpossibleTransitionError, Transitions, next_state

log = logging.getLogger("headwater.engine")


class FollowState(enum.IntEnum):
    NEW = enum.auto()
    LIVE = enum.auto()
    READING = enum.auto()
    BLOCKED = enum.auto()
    ENDED = enum.auto()


class FollowEvent(enum.IntEnum):
    CAUGHT_UP = enum.auto()
    MORE = enum.auto()
    REFUSED = enum.auto()
    OVER = enum.auto()


# Module constants, because in Python 3.11 `FollowState.LIVE` takes ten times as long as `LIVE`.
NEW = FollowState.NEW
LIVE = FollowState.LIVE
READING = FollowState.READING
BLOCKED = FollowState.BLOCKED
ENDED = FollowState.ENDED

CAUGHT_UP = FollowEvent.CAUGHT_UP
MORE = FollowEvent.MORE
REFUSED = FollowEvent.REFUSED
OVER = FollowEvent.OVER

TRANSITIONS: Transitions[FollowState, FollowEvent] = {
    NEW: {CAUGHT_UP: LIVE, MORE: READING, REFUSED: BLOCKED, OVER: ENDED},
    LIVE: {MORE: READING, REFUSED: BLOCKED, OVER: ENDED},
    READING: {CAUGHT_UP: LIVE, MORE: READING, REFUSED: BLOCKED, OVER: ENDED},
    BLOCKED: {MORE: READING, OVER: ENDED},
    ENDED: {},
}


class Extent(enum.Enum):
    """How long a follower goes on. Errors end each of them."""

    RANGE = enum.auto()  # up to `until`, even if the server stops: only a read that fails ends it before
    STREAM = enum.auto()  # until the stream is closed and read to its end
    LIFE = enum.auto()  # until the stream is deleted: it stays after the stream was closed
    NEWS = enum.auto()  # the same, and it skips to the last update instead of reading what it missed


class Consumer(Protocol):
    """What a follower passes the data of a stream to."""

    @property
    def ready(self) -> bool:
        """Whether it would take a slice now. After it was not, it calls `StreamFollower.resume` when it is again."""

    def take(self, piece: Slice) -> bool:
        """Take a slice. False: it is refused, because the consumer is not ready."""

    def ended(self, reason: Reason) -> None:
        """There is no more. Called once, at any time after `open`, unless the follower is closed before."""


class Followed(Protocol):
    """The part of the engine that followers use."""

    slices: SharedSlices

    def follow(self, stream_id: int, subscriber: StreamFollower) -> VisibleStream: ...

    def unfollow(self, stream_id: int, subscriber: StreamFollower) -> None: ...

    def read_more(self, message: ReadMore) -> Awaitable[ReadReply]: ...


class StreamFollower:
    """A cursor over one stream. `kind` is the name of its consumer in metrics."""

    __slots__ = (
        "_bytes_max",
        "_closed",
        "_consumer",
        "_engine",
        "_extent",
        "_offset",
        "_reading",
        "_tail",
        "_take",
        "_until",
        "kind",
        "position",
        "state",
        "stream",
    )

    def __init__(
        self,
        engine: Followed,
        consumer: Consumer,
        kind: str,
        stream: VisibleStream,
        position: int,
        *,
        bytes_max: int = 1,
        until: int | None = None,
        extent: Extent = Extent.STREAM,
    ) -> None:
        self.kind = kind
        self.stream = stream  # as it was last read
        self.position = position  # after the last slice that was taken
        self.state = NEW
        self._engine = engine
        self._consumer = consumer
        self._take = consumer.take
        self._bytes_max = bytes_max
        self._until = POSITION_MAX if until is None else until
        self._extent = extent
        self._offset: Offset | None = None  # of the end of the last slice that was taken
        self._tail = position  # the last one that a read or a missed update named; `position` may be beyond it
        self._closed = False  # and the consumer was not told yet
        self._reading: asyncio.Task[None] | None = None
        self._note(stream)

    @property
    def tail(self) -> int:
        return max(self._tail, self.position)

    @property
    def offset(self) -> Offset:
        """The offset of the position. A slice has the newest one: an append after a restore begins a timeline."""
        offset = self._offset
        return self.stream.offset(self.position) if offset is None or offset.position != self.position else offset

    def left_bytes(self, position: int) -> int:
        """How many bytes there are after a position."""
        return self.stream.size(position, self.tail)

    # From the consumer

    def open(self, first: ReadReply | None = None) -> None:
        """Begin, with the answer to an earlier read, if there is one. It is passed on even if it is empty."""
        try:
            stream = self._engine.follow(self.stream.id, self)
        except HeadwaterError as error:
            if self._extent is not Extent.RANGE:
                self._fail(error)
                return
        else:
            self._note(stream)
        if first is None:
            self._go_on()
        else:
            self._pass_on(first)

    def resume(self) -> None:
        """The consumer is ready again."""
        if self.state is BLOCKED and self._consumer.ready:
            self._move(MORE)
            self._begin_to_read()

    def expect(self, tail: int) -> None:
        """The stream is known to reach a position, whatever was delivered so far."""
        if tail > self.tail:
            self._tail = tail
            if self.state is LIVE:
                self._go_on()

    def seek(self, position: int) -> None:
        """Continue at another position. The consumer must not have taken anything yet."""
        if self.state is not BLOCKED:
            raise ImpossibleTransitionError(f"a follower cannot seek while {self.state.name}")
        self.position = position

    def end_at_tail(self) -> None:
        """End with what is there now."""
        self._until = min(self._until, self.tail)
        if self.position >= self._until and self.state is not READING:
            self._end(Ended.REACHED)

    def close(self) -> None:
        """End without telling the consumer."""
        if self.state is ENDED:
            return
        self._move(OVER)
        self._engine.unfollow(self.stream.id, self)
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        self._consumer = _NOBODY  # otherwise both would wait for the garbage collector
        self._take = _NOBODY.take

    # From the engine

    def deliver(self, piece: Slice) -> None:
        if self.state is LIVE and piece.start == self.position and piece.next < self._until:
            if self._take(piece):
                self.position, self._offset = piece.next, piece.offset
                if piece.closed:
                    self._take_closing()
            elif self.state is LIVE:
                self._miss(piece)
                self._move(REFUSED)
        else:
            self._miss(piece)
            if self.state is LIVE and (piece.next > self.position or self._closed):
                self._catch_up(piece)

    def ended(self, reason: Reason) -> None:
        if isinstance(reason, HeadwaterError):
            self._fail(reason)
        elif self._extent is not Extent.RANGE:
            self._end(reason)

    def _catch_up(self, piece: Slice) -> None:
        if self._extent is Extent.NEWS:
            self.position = piece.start
            self.deliver(piece)
        else:
            self._go_on()

    # States

    def _move(self, event: FollowEvent) -> None:
        self.state = next_state(TRANSITIONS, self.state, event)

    def _note(self, stream: VisibleStream) -> None:
        self.stream = stream
        self._tail = max(self._tail, stream.tail)
        self._note_closing(closed=stream.closed)

    def _miss(self, piece: Slice) -> None:
        self._tail = max(self._tail, piece.next)
        self._note_closing(closed=piece.closed)

    def _note_closing(self, *, closed: bool) -> None:
        if closed and self._extent in (Extent.STREAM, Extent.RANGE):
            self._closed = True

    def _go_on(self) -> None:
        """Enter the state that follows from what the consumer has and what there is."""
        if self._extent is Extent.NEWS:
            self.position = self.tail
        if self.position >= self._until:
            self._end(Ended.REACHED)
        elif self.position >= self._tail and not self._closed:
            self._move(CAUGHT_UP)
        elif self._consumer.ready:
            self._move(MORE)
            self._begin_to_read()
        else:
            self._move(REFUSED)

    def _take_closing(self) -> None:
        self._note_closing(closed=True)
        if self._closed:
            self._end(Ended.CLOSED)

    def _end(self, reason: Reason) -> None:
        if self.state is not ENDED:
            consumer = self._consumer
            self.close()
            consumer.ended(reason)

    def _fail(self, error: HeadwaterError) -> None:
        if isinstance(error, StreamNotFoundError | StreamGoneError):
            self._end(Ended.DELETED)
        else:
            log.info("a reader (%s) of %r ended: %s", self.kind, self.stream.path, error)
            self._end(error)

    # Reading

    def _begin_to_read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while self.state is READING:
                if not self._consumer.ready:  # it was when the task was created
                    self._move(REFUSED)
                    break
                until = None if self._until == POSITION_MAX else self._until
                reply = await self._engine.read_more(ReadMore(self.stream.id, self.position, until, self._bytes_max))
                if self.state is READING:
                    if reply.next == self.position < min(self._tail, self._until):
                        raise InternalError(f"a read at {reply.start} is empty, but the stream ends at {self._tail}")
                    self._pass_on(reply)
        except HeadwaterError as error:
            self._fail(error)
        except Exception:
            log.exception("a reader (%s) failed", self.kind)
            self._end(InternalError("the server log has the cause"))
        finally:
            self._reading = None

    def _pass_on(self, reply: ReadReply) -> None:
        self._note(reply.stream)
        piece = self._engine.slices.of(reply)
        taken = self._take(piece)
        if self.state is ENDED:
            return
        if not taken:
            self._move(REFUSED)
            return
        self.position, self._offset = piece.next, piece.offset
        if piece.closed:
            self._take_closing()
        if self.state is not ENDED:
            self._go_on()


class _Nobody:
    """The consumer of a follower that has ended."""

    ready = False

    def take(self, piece: Slice) -> bool:
        return False

    def ended(self, reason: Reason) -> None:
        """Nobody is told."""


_NOBODY = _Nobody()


class Pulled:
    """A consumer for code that awaits slices one after the other. It is ready while a slice is awaited."""

    def __init__(
        self,
        engine: Followed,
        kind: str,
        stream: VisibleStream,
        position: int,
        *,
        bytes_max: int = 1,
        until: int | None = None,
        extent: Extent = Extent.STREAM,
    ) -> None:
        self.follower = StreamFollower(
            engine, self, kind, stream, position, bytes_max=bytes_max, until=until, extent=extent
        )
        self._awaited: asyncio.Future[Slice | None] | None = None
        self.reason: Reason | None = None  # why there is no more

    async def next(self) -> Slice | None:
        """The next slice; None at the end. Raises the error that ended the follower."""
        if self.reason is None:
            self._awaited = asyncio.get_running_loop().create_future()
            self.follower.resume()
            try:
                piece = await self._awaited
            finally:
                self._awaited = None
            if piece is not None:
                return piece
        if isinstance(self.reason, HeadwaterError):
            raise self.reason
        return None

    # From the follower

    @property
    def ready(self) -> bool:
        return self._awaited is not None and not self._awaited.done()

    def take(self, piece: Slice) -> bool:
        if self._awaited is None or self._awaited.done():
            return False
        self._awaited.set_result(piece)
        return True

    def ended(self, reason: Reason) -> None:
        self.reason = reason
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)


class SharedSlices:
    """The slices of reads. Readers at the same place get the same object, if another reader has it or it is among the
    last small ones."""

    __slots__ = ("_kept", "_now_ms", "_slices")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._slices: WeakValueDictionary[tuple[int, int, int, bool, bool], Slice] = WeakValueDictionary()
        self._kept: deque[Slice] = deque(maxlen=SLICES_KEPT)

    def clear(self) -> None:
        """Forget all slices: other bytes may be at their positions."""
        self._slices.clear()
        self._kept.clear()

    def of(self, reply: ReadReply) -> Slice:
        stream, end = reply.stream, reply.next
        at_tail = end == stream.tail
        closed = at_tail and stream.closed
        key = (stream.id, reply.start, end, at_tail, closed)
        piece = self._slices.get(key)
        if piece is None:
            piece = self._slices[key] = Slice(
                stream.id,
                stream.kind,
                reply.start,
                end,
                stream.offset(end),
                reply.data,
                closed,
                self._now_ms(),
                at_tail,
                stream.last_seqno,
                reply.held,
            )
            if len(reply.data) <= SLICE_KEPT_BYTES_MAX:
                self._kept.append(piece)
        return piece
