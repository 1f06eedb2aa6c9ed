"""Server-sent events as frames, encoded once for all the readers of a stream."""

from __future__ import annotations

from headwater import limits
from headwater.engine.messages import Update
from headwater.protocol.streams import sse
from headwater.protocol.streams.offsets import format_offset
from headwater.server.http import Frame


class EventFrames:
    """A data event as frames. Those made last are kept for other readers that are at about the same place."""

    __slots__ = ("_event", "_kept", "pieces")

    def __init__(self, event: sse.DataEvent) -> None:
        self._event = event
        self._kept: dict[int, Frame] = {}
        self.pieces = event.pieces

    def frame(self, number: int) -> Frame:
        frame = self._kept.get(number)
        if frame is None:
            frame = self._kept[number] = Frame(self._event.piece(number))
            if len(self._kept) > limits.SSE_PIECES_KEPT:
                del self._kept[next(iter(self._kept))]
        return frame


class UpdateFrames:
    """The frames of an update. The engine gives the same one to one reader after the other, so the last is kept."""

    __slots__ = ("_data", "_joined", "_update")

    def __init__(self) -> None:
        self._update: Update | None = None
        self._data: EventFrames | None = None
        self._joined: dict[int, Frame] = {}

    def data(self, update: Update) -> EventFrames | None:
        """The data event of an update; None if it only closes the stream."""
        if update is not self._update:
            self._update = update
            offset = format_offset(update.tail)
            self._data = EventFrames(sse.DataEvent(update.kind, update.data, offset)) if update.data else None
            self._joined = {}
        return self._data

    def joined(self, update: Update, cursor: int) -> Frame:
        """Data and control of a small update in one frame, for each cursor in use."""
        data = self.data(update)
        frame = self._joined.get(cursor)
        if frame is None:
            body = b"" if data is None else data.frame(0).body
            frame = self._joined[cursor] = Frame(body + control_of(update, cursor))
        return frame


def control_of(update: Update, cursor: int) -> bytes:
    offset = format_offset(update.tail)
    return sse.control_frame(offset, cursor=cursor, up_to_date=True, closed=update.closed, with_id=not update.data)
