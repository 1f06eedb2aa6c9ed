"""Event feeds: a stream as server-sent events, a data event and a control event for each slice."""

from __future__ import annotations

from headwater.engine.follower import StreamFollower
from headwater.engine.messages import Ended, ReadReply, Reason, Slice
from headwater.limits import FRAME_BYTES_MAX, FRAMES_SHARED_MAX
from headwater.protocol.streams import sse
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.reads import interval_at
from headwater.server.http import Frame
from headwater.server.live_feeds import EventLifetime, LargeFrames, LiveFeed
from headwater.server.service import Service


class EventFeed(LiveFeed):
    """The events of one reader, from the answer to its first read on."""

    __slots__ = ("_cursor", "_first", "_lifetime")

    def __init__(self, service: Service, first: ReadReply, cursor: int) -> None:
        super().__init__(service)
        self._follower = StreamFollower(
            service.engine,
            self,
            "sse",
            first.stream,
            first.start,
            until=first.until,
            bytes_max=service.limits.sse_chunk_bytes,
        )
        self._first: ReadReply | None = first
        self._cursor = cursor
        self._lifetime = EventLifetime(service)

    def _begin(self, now_s: float) -> None:
        """The first event is written at once: the existing data, or that there is none yet."""
        self._lifetime.begin(now_s)
        first, self._first = self._first, None
        self._follower.open(first)

    def tick(self, now_s: float) -> None:
        self._lifetime.tick(now_s, self)

    def take(self, piece: Slice) -> bool:
        sink = self._sink
        if sink is None or sink.blocked or self._frames is not None:
            return False
        frame = piece.encoded.get(self._cursor)
        if frame is None:
            if len(piece.data) > FRAME_BYTES_MAX:
                self._write_all(piece, _large(piece))
                return True
            frame = _joined(piece, self._cursor)
        sink.write(frame)
        return True

    def _written(self, piece: Slice) -> None:
        if self._sink is not None:
            at_tail = piece.next == self._follower.tail  # by now
            cursor = max(self._cursor, interval_at(self._service.now_ms))
            self._sink.write(Frame(_control(piece, cursor, at_tail=at_tail)))

    def _end(self, reason: Reason) -> None:
        if reason is Ended.DELETED and self._sink is not None:
            self._sink.write(Frame(sse.deletion_frame(format_offset(self._follower.offset))))
        self.finish()


def _large(piece: Slice) -> LargeFrames:
    frames: LargeFrames | None = piece.encoded.get(LargeFrames)
    if frames is None:
        event = sse.DataEvent(piece.kind, piece.data, format_offset(piece.offset))
        frames = piece.encoded[LargeFrames] = LargeFrames(event.pieces, event.piece)
    return frames


def _joined(piece: Slice, cursor: int) -> Frame:
    """Data and control event in one frame. Most cursors are lower than the current one, and share a frame. Clients can
    choose others, and slices are kept, so not every frame is."""
    moved = max(cursor, interval_at(piece.now_ms))
    frame: Frame | None = piece.encoded.get(moved)
    if frame is None:
        event = sse.data_frame(piece.kind, piece.data, format_offset(piece.offset)) if piece.data else b""
        frame = Frame(event + _control(piece, moved, at_tail=piece.at_tail))
    if len(piece.encoded) < FRAMES_SHARED_MAX:
        piece.encoded[moved] = piece.encoded[cursor] = frame
    return frame


def _control(piece: Slice, cursor: int, *, at_tail: bool) -> bytes:
    """The control event with the offset after the data."""
    offset = format_offset(piece.offset)
    return sse.control_frame(offset, cursor=cursor, up_to_date=at_tail, closed=piece.closed, with_id=not piece.data)
