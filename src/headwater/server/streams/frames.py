"""Server-sent events as frames, encoded once for all readers of a stream."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from headwater import limits
from headwater.engine.messages import ReadReply, Update
from headwater.protocol.streams import sse
from headwater.protocol.streams.cursors import interval_at
from headwater.protocol.streams.offsets import format_offset
from headwater.server.http import Frame


class EventFrames:
    """A data event as frames. The last few are cached for other readers at about the same position.

    `held` keeps large data in the memory budget.
    """

    __slots__ = ("__weakref__", "_event", "_held", "_kept", "pieces")

    def __init__(self, event: sse.DataEvent, held: object = None) -> None:
        self._event = event
        self._held = held
        self._kept: dict[int, Frame] = {}
        self.pieces = event.pieces

    def frame(self, number: int) -> Frame:
        frame = self._kept.get(number)
        if frame is None:
            frame = self._kept[number] = Frame(self._event.piece(number))
            if len(self._kept) > limits.SSE_PIECES_KEPT:
                del self._kept[next(iter(self._kept))]
        return frame


class LargeEvents:
    """Large data events that are being written, encoded once for all readers."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: WeakValueDictionary[tuple[int, int, int], EventFrames] = WeakValueDictionary()

    def of_update(self, update: Update, hold: Callable[[Update], object]) -> EventFrames:
        at = (update.stream_id, update.start, update.end)
        frames = self._events.get(at)
        if frames is None:
            event = sse.DataEvent(update.kind, update.data, format_offset(update.tail))
            frames = self._events[at] = EventFrames(event, hold(update))
        return frames

    def of_reply(self, reply: ReadReply) -> EventFrames:
        stream = reply.stream
        at = (stream.id, reply.start, reply.next)
        frames = self._events.get(at)
        if frames is None:
            event = sse.DataEvent(stream.kind, reply.data, format_offset(stream.offset(reply.next)))
            frames = self._events[at] = EventFrames(event, reply.held)
        return frames


class UpdateFrames:
    """The frames of a small update. The engine passes the same update to all readers, so the last frame is cached."""

    __slots__ = ("_data", "_joined", "_update")

    def __init__(self) -> None:
        self._update: Update | None = None
        self._data = b""
        self._joined: dict[int, Frame] = {}

    def joined(self, update: Update, cursor: int) -> Frame:
        """Data and control in one frame, for a reader with this cursor."""
        if update is not self._update:
            self._update = update
            offset = format_offset(update.tail)
            self._data = sse.data_frame(update.kind, update.data, offset) if update.data else b""
            self._joined = {}
        frame = self._joined.get(cursor)
        return self._made(update, cursor) if frame is None else frame

    def _made(self, update: Update, cursor: int) -> Frame:
        """Most cursors are lower than the current one, and share a frame."""
        moved = max(cursor, interval_at(update.now_ms))
        frame = self._joined.get(moved)
        if frame is None:
            frame = self._joined[moved] = Frame(self._data + control_of(update, moved))
        self._joined[cursor] = frame
        return frame


def control_of(update: Update, cursor: int) -> bytes:
    offset = format_offset(update.tail)
    return sse.control_frame(offset, cursor=cursor, up_to_date=True, closed=update.closed, with_id=not update.data)
