"""Combined feeds: many streams as the events of one response.

Each stream is a lane: a follower of its own, which catches up, is live, falls behind and ends by itself. The lanes
share one connection. New data of a lane that is live is written at once. Everything else waits in a queue for the turn
of its lane: data that must be read, and control events. In its turn a lane reads one slice, and then waits behind the
others, so a stream with a long history does not delay them. Few lanes read at the same time, so that the memory of a
connection does not grow with its streams. While the connection does not drain, no lane reads, and nothing is kept for
any of them.

The lines of a data event are encoded once for all connections. The id that follows has the positions of all streams of
the connection, so each connection has its own (`protocol.streams.combined`).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headwater.engine.follower import BLOCKED, LIVE, READING, StreamFollower
from headwater.engine.messages import Ended, Reason, Slice, VisibleStream
from headwater.errors import HeadwaterError
from headwater.limits import COMBINED_LANES_PER_TURN, COMBINED_READS_AT_ONCE, FRAME_BYTES_MAX
from headwater.log.offsets import Offset
from headwater.protocol.streams import combined
from headwater.protocol.streams.offsets import format_offset
from headwater.server.auth.callers import ANYONE, Caller
from headwater.server.auth.scopes import Action
from headwater.server.http import Frame
from headwater.server.live_feeds import EventLifetime, LargeFrames, SliceFeed
from headwater.server.problems import problem_document
from headwater.server.service import Service

KIND = "combined"  # of its followers, in metrics
# In control events.
UP_TO_DATE, CLOSED, DELETED, FORBIDDEN, REMOVED = "upToDate", "streamClosed", "deleted", "forbidden", "removed"

_LINES, _FRAME = object(), object()  # keys of what a slice keeps


class Lane:
    """A stream of a combined feed: the consumer of its follower. Without a follower it was over before."""

    __slots__ = ("_feed", "_start", "end", "error", "follower", "is_waiting", "key", "path", "tells_tail")

    def __init__(self, feed: CombinedFeed, key: int, path: str, start: Offset) -> None:
        self._feed = feed
        self._start = start
        self.key = key
        self.path = path
        self.follower: StreamFollower | None = None
        self.tells_tail = True  # with the next event at the tail: it was not told since it fell behind
        self.is_waiting = False  # in the queue
        self.end = ""  # what its last control event says
        self.error: HeadwaterError | None = None  # the same

    @property
    def offset(self) -> Offset:
        return self._start if self.follower is None else self.follower.offset

    @property
    def stream_id(self) -> int:
        return 0 if self.follower is None else self.follower.stream.id

    # From the follower

    @property
    def ready(self) -> bool:
        return self._feed.may_read(self)

    def take(self, piece: Slice) -> bool:
        return self._feed.take(self, piece)

    def ended(self, reason: Reason) -> None:
        self._feed.lane_ended(self, reason)


class Membership(Protocol):
    """Which streams a feed follows, if they change while it is open."""

    @property
    def is_over(self) -> bool:
        """There are no more streams, and the feed ends."""

    def __contains__(self, path: str) -> bool: ...

    def begin(self, feed: CombinedFeed) -> None:
        """The feed is open. It is given the streams that it lacks, and those that join."""

    def left(self, path: str, end: str, stream_id: int) -> None:
        """The feed has ended a stream. It may be followed again. `end` is empty if it cannot be read."""

    def close(self) -> None:
        """The feed has ended."""


class CombinedFeed(SliceFeed):
    """The events of one reader of many streams. `ids` None: events have no ids."""

    __slots__ = ("_awaits_turn", "_ids", "_lane", "_lanes", "_lifetime", "_membership", "_queue", "_reading", "caller")

    def __init__(
        self,
        service: Service,
        ids: combined.EventIds | None,
        caller: Caller = ANYONE,
        membership: Membership | None = None,
    ) -> None:
        super().__init__(service)
        self._ids = ids
        self._membership = membership
        self.caller = caller  # as it was last checked
        self._lanes: dict[int, Lane] = {}  # by their keys in ids
        self._queue: deque[Lane] = deque()  # lanes that wait for their turn
        self._reading: set[Lane] = set()  # lanes whose turn it is
        self._lane: Lane | None = None  # of the slice that is being written
        self._awaits_turn = False
        self._lifetime = EventLifetime(service)

    def add_over(self, key: int, path: str, start: Offset, error: HeadwaterError | None) -> None:
        """Tell the reader, when the feed is opened, that a stream cannot be followed, or without an error that it was
        deleted."""
        lane = self._lanes[key] = Lane(self, key, path, start)
        lane.error, lane.end = error, "" if error is not None else DELETED

    def add(self, key: int, path: str, stream: VisibleStream, position: int, *, tells_tail: bool = True) -> None:
        """Follow a stream from a position on, before the feed is opened. `tells_tail`: the reader does not know that it
        is up to date."""
        lane = self._lanes[key] = Lane(self, key, path, stream.offset(position))
        lane.tells_tail = tells_tail
        lane.follower = StreamFollower(
            self._service.engine, lane, KIND, stream, position, bytes_max=self._service.limits.sse_chunk_bytes
        )

    def follow(self, key: int, path: str, stream: VisibleStream, position: int) -> None:
        """Follow another stream, while the feed is open. If the caller may not read it, the reader is told."""
        self.add(key, path, stream, position)
        lane = self._lanes[key]
        if not self.caller.may(Action.READ, path):
            lane.end = FORBIDDEN
        elif lane.follower is not None:
            lane.follower.open()
        if not self._is_over and key in self._lanes:
            self._wait(lane)

    def __contains__(self, key: int) -> bool:
        return key in self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def has_members(self) -> bool:
        """Whether it follows the streams of a subscription."""
        return self._membership is not None

    @property
    def is_open(self) -> bool:
        return self._sink is not None and not self._is_over

    # From the connection

    def _begin(self, now_s: float) -> None:
        self._lifetime.begin(now_s)
        self._service.combined.add(self)
        for lane in list(self._lanes.values()):
            if lane.follower is not None and not lane.end:
                lane.follower.open()
            if self._is_over:
                return
            self._wait(lane)
        if self._membership is not None:
            self._membership.begin(self)

    def tick(self, now_s: float) -> None:
        if self._membership is not None and self._frames is None:
            self._check_members(self._membership)
        self._lifetime.tick(now_s, self)

    def _check_members(self, membership: Membership) -> None:
        if membership.is_over:
            self.finish()
        for lane in list(self._lanes.values()):
            if not lane.end and lane.error is None and lane.path not in membership:
                self._end_lane(lane, REMOVED)

    def _resume(self) -> None:
        self._ask()

    def _close(self) -> None:
        self._service.combined.discard(self)
        if self._membership is not None:
            self._membership.close()
        self._queue.clear()
        self._reading.clear()
        self._lane = None
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.follower is not None:
                lane.follower.close()

    # From the access checks

    def keep_readable(self, caller: Caller) -> bool:
        """End the lanes that a caller may not read any more. False: the response has to end."""
        self.caller = caller
        for lane in list(self._lanes.values()):
            if lane.end or lane.error is not None or caller.may(Action.READ, lane.path):
                continue
            if lane is self._lane:
                return False  # an event that has begun cannot be left incomplete
            self._end_lane(lane, FORBIDDEN)
        return True

    def _end_lane(self, lane: Lane, end: str) -> None:
        lane.end = end
        self._reading.discard(lane)
        if lane.follower is not None:
            lane.follower.close()
        self._wait(lane)

    # From the lanes

    def may_read(self, lane: Lane) -> bool:
        if lane in self._reading and self._has_room:
            return True
        self._refuse(lane)
        return False

    def take(self, lane: Lane, piece: Slice) -> bool:
        if not self._has_room:
            self._refuse(lane)
            return False
        if lane in self._reading:
            self._reading.discard(lane)
            self._ask()
        if len(piece.data) > FRAME_BYTES_MAX:
            self._lane = lane
            self._write_all(piece, _large(piece, lane.path))
        else:
            self._write_slice(lane, piece)
        return True

    def lane_ended(self, lane: Lane, reason: Reason) -> None:
        self._reading.discard(lane)
        if reason is Ended.DELETED:
            lane.end = DELETED
            self._wait(lane)
        elif reason is Ended.CLOSED:  # and it was told with the last slice
            lane.end = CLOSED
            if lane is not self._lane:
                self._remove(lane)
        elif isinstance(reason, HeadwaterError) and not reason.retryable:
            lane.error = reason
            self._wait(lane)
        else:  # the server stops, or a read failed that can succeed when the reader reconnects
            self.finish()

    def _refuse(self, lane: Lane) -> None:
        lane.tells_tail = True
        self._reading.discard(lane)
        self._wait(lane)

    def _remove(self, lane: Lane) -> None:
        del self._lanes[lane.key]
        if self._membership is not None:
            if self._ids is not None and lane.end != CLOSED:
                self._ids.forget(lane.key)
            self._membership.left(lane.path, lane.end, lane.stream_id)
        if self._lanes or self._membership is not None:
            self._ask()
        else:
            self.finish()

    # Turns

    def _wait(self, lane: Lane) -> None:
        """Put a lane into the queue, once."""
        if not lane.is_waiting:
            lane.is_waiting = True
            self._queue.append(lane)
        self._ask()

    def _ask(self) -> None:
        """Ask for a turn, once. A connection that has no room asks when it has."""
        if not self._awaits_turn and self._queue and self._has_room:
            self._awaits_turn = True
            self._service.turns.ask(self._serve_some)

    def _serve_some(self) -> None:
        self._awaits_turn = False
        for _ in range(COMBINED_LANES_PER_TURN):
            if not self._queue or not self._has_room or len(self._reading) >= COMBINED_READS_AT_ONCE:
                return
            lane = self._queue.popleft()
            lane.is_waiting = False
            self._serve(lane)
        self._ask()

    def _serve(self, lane: Lane) -> None:
        follower = lane.follower
        if lane.end or lane.error is not None:
            self._write_end(lane)
        elif follower is None:
            raise RuntimeError("a lane has neither a follower nor an end")
        elif follower.state is BLOCKED:
            self._reading.add(lane)
            follower.resume()
            if follower.state is not READING:
                self._reading.discard(lane)
        elif follower.state is LIVE and lane.tells_tail:
            self._write_tail(lane)

    # Events

    def _write(self, event: bytes) -> None:
        if self._sink is not None:
            self._sink.write(Frame(event))

    def _write_slice(self, lane: Lane, piece: Slice) -> None:
        at_tail = self._is_tail(lane, piece)
        if not at_tail and not piece.closed and self._ids is None:
            if piece.data and self._sink is not None:
                self._sink.write(_whole(piece, lane.path))
            return
        event = _lines(piece, lane.path) + self._last_line(lane, piece.offset) if piece.data else b""
        if at_tail or piece.closed:
            event += self._control(lane, piece, at_tail=at_tail)
        if event:
            self._write(event)

    def _is_tail(self, lane: Lane, piece: Slice) -> bool:
        """Whether the reader is to be told that it has everything."""
        follower = lane.follower
        return lane.tells_tail and piece.at_tail and (follower is None or piece.next >= follower.tail)

    def _control(self, lane: Lane, piece: Slice, *, at_tail: bool) -> bytes:
        if at_tail:
            lane.tells_tail = False
        facts = (UP_TO_DATE, CLOSED) if piece.closed else (UP_TO_DATE,)
        lines = combined.control_lines(lane.path, format_offset(piece.offset), *facts)
        return lines + self._last_line(lane, piece.offset, over=piece.closed)

    def _last_line(self, lane: Lane, offset: Offset, *, over: bool = False) -> bytes:
        if self._ids is None:
            return b"\n"
        self._ids.move(lane.key, combined.Reached(offset, over, not lane.tells_tail))
        return self._ids.line()

    def _write_tail(self, lane: Lane) -> None:
        lane.tells_tail = False
        lines = combined.control_lines(lane.path, format_offset(lane.offset), UP_TO_DATE)
        self._write(lines + self._last_line(lane, lane.offset))

    def _write_end(self, lane: Lane) -> None:
        """A stream that failed is tried again when the reader reconnects; others are over."""
        document = b"" if lane.error is None else problem_document(lane.error)
        facts = (lane.end,) if lane.end else ()
        lines = combined.control_lines(lane.path, format_offset(lane.offset), *facts, problem=document)
        self._write(lines + self._last_line(lane, lane.offset, over=lane.error is None))
        self._remove(lane)

    def _written(self, piece: Slice) -> None:
        lane, self._lane = self._lane, None
        if lane is None:
            raise RuntimeError("a slice was written without a lane")
        event = self._last_line(lane, piece.offset)
        at_tail = self._is_tail(lane, piece)
        if at_tail or piece.closed:
            event += self._control(lane, piece, at_tail=at_tail)
        self._write(event)
        if lane.end == CLOSED:
            self._remove(lane)


def _lines(piece: Slice, path: str) -> bytes:
    """The lines of a data event without its id, the same for all connections."""
    lines: bytes | None = piece.encoded.get(_LINES)
    if lines is None:
        lines = piece.encoded[_LINES] = combined.data_lines(path, piece.kind, piece.data, format_offset(piece.offset))
    return lines


def _whole(piece: Slice, path: str) -> Frame:
    """A data event without an id."""
    frame: Frame | None = piece.encoded.get(_FRAME)
    if frame is None:
        frame = piece.encoded[_FRAME] = Frame(_lines(piece, path) + b"\n")
    return frame


def _large(piece: Slice, path: str) -> LargeFrames:
    key = (LargeFrames, KIND)
    frames: LargeFrames | None = piece.encoded.get(key)
    if frames is None:
        event = combined.CombinedEvent(path, piece.kind, piece.data, format_offset(piece.offset))
        frames = piece.encoded[key] = LargeFrames(event.pieces, event.piece)
    return frames
