"""Server-sent events of an update, encoded once for all the readers of a stream."""

from __future__ import annotations

from headwater.engine.messages import Update
from headwater.protocol.streams import sse
from headwater.protocol.streams.offsets import format_offset
from headwater.server.http import Frame


class UpdateFrames:
    """The engine gives the same update to one reader after the other, so the last one is all that must be kept."""

    __slots__ = ("_data", "_frames", "_update")

    def __init__(self) -> None:
        self._update: Update | None = None
        self._data = b""
        self._frames: dict[int, Frame] = {}

    def get(self, update: Update, cursor: int) -> Frame:
        """The events to send: data if there is any, then control. One frame for each cursor in use."""
        if update is not self._update:
            self._update = update
            self._data = sse.data_frame(update.kind, update.data) if update.data else b""
            self._frames = {}
        frame = self._frames.get(cursor)
        if frame is None:
            offset = format_offset(update.tail)
            control = sse.control_frame(offset, cursor=cursor, up_to_date=True, closed=update.closed)
            frame = self._frames[cursor] = Frame(self._data + control)
        return frame
