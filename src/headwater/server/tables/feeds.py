"""Row feeds: a table as rows or events, in a response that stays open.

It continues with rows as they arrive, until none has arrived for `idle_s`, or for `timeout_s` in total. If `since_id`
is beyond the end of the table, it waits for the rows after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headwater.engine.follower import LIVE, StreamFollower
from headwater.engine.messages import RowPosition, Slice, VisibleStream
from headwater.limits import BODY_PIECE_BYTES, FRAME_BYTES_MAX
from headwater.log.row_framing import position_after
from headwater.protocol.streams.sse import KEEP_ALIVE
from headwater.protocol.tables.rows import event_frames
from headwater.server.http import Frame
from headwater.server.live_feeds import LargeFrames, LiveFeed
from headwater.server.service import Service

_KEEP_ALIVE = Frame(KEEP_ALIVE)
_FORMATS: dict[bool, Callable[[bytes], bytes]] = {False: bytes, True: event_frames}  # by whether rows are events


class RowFeed(LiveFeed):
    """The rows of one reader."""

    __slots__ = ("_events", "_idle_s", "_sent_s", "_since_id", "_skip", "_spoke_s", "_timer", "_until_s")

    def __init__(
        self,
        service: Service,
        table: VisibleStream,
        start: RowPosition,
        *,
        since_id: int = 0,
        timeout_s: float = 0.0,
        idle_s: float = 0.0,
        events: bool = False,
    ) -> None:
        super().__init__(service)
        bytes_max = min(service.limits.sse_chunk_bytes, BODY_PIECE_BYTES)
        self._follower = StreamFollower(service.engine, self, "table", table, start.record, bytes_max=bytes_max)
        self._skip = start.skip  # bytes of the first slice
        self._since_id = since_id if since_id > table.last_seqno else 0  # rows up to it do not exist yet
        self._until_s = timeout_s  # relative until `open`, then the deadline
        self._idle_s = idle_s
        self._events = events
        self._spoke_s = self._sent_s = 0.0  # when the last row, and the last byte, was written
        self._timer: asyncio.TimerHandle | None = None

    # From the connection

    def _begin(self, now_s: float) -> None:
        self._spoke_s = self._sent_s = asyncio.get_running_loop().time()
        self._until_s += self._spoke_s
        self._follower.open()
        if not self._is_over:
            self._watch()

    def tick(self, now_s: float) -> None:
        sink = self._sink
        if not self._events or self._is_busy or sink is None or sink.blocked:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._sent_s >= self._service.limits.sse_keep_alive_s:
            self._sent_s = now_s
            sink.write(_KEEP_ALIVE)

    def cancel(self) -> None:
        super().cancel()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _is_busy(self) -> bool:
        """Whether there are rows that are not written yet."""
        return self._frames is not None or self._follower.state is not LIVE

    def _watch(self) -> None:
        """End the response if its time is up, otherwise set a timer for the next check."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._is_busy:
            self._spoke_s = now_s  # a blocked client is not idle
        left_s = min(self._until_s, self._spoke_s + self._idle_s) - now_s
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._watch)
        else:
            self._follower.end_at_tail()

    # From the follower

    def take(self, piece: Slice) -> bool:
        sink = self._sink
        if sink is None or sink.blocked or self._frames is not None:
            return False
        if self._skip or self._since_id:
            self._take_part(piece)
        elif len(piece.data) > FRAME_BYTES_MAX:
            self._write_all(piece, self._large(piece))
        elif piece.data:
            frame = piece.encoded.get(self._events)
            if frame is None:
                frame = piece.encoded[self._events] = Frame(_FORMATS[self._events](piece.data))
            sink.write(frame)
        self._spoke_s = self._sent_s = asyncio.get_running_loop().time()
        return True

    def _take_part(self, piece: Slice) -> None:
        """Leave out the rows before the first one that the reader has asked for."""
        start, self._skip = self._skip, 0
        if self._since_id:
            start += position_after(piece.data[start:], self._since_id)
        if start < len(piece.data):
            self._since_id = 0
            self._write_all(piece, self._cut(piece, start))

    def _large(self, piece: Slice) -> LargeFrames:
        """Written when it is its turn, because thousands of readers may write at the same time."""
        key = (LargeFrames, self._events)
        frames: LargeFrames | None = piece.encoded.get(key)
        if frames is None:
            frames = piece.encoded[key] = self._cut(piece, 0)
        return frames

    def _cut(self, piece: Slice, start: int) -> LargeFrames:
        data, encode = piece.data, _FORMATS[self._events]
        pieces = list(cut_rows(data, start))
        return LargeFrames(len(pieces), lambda number: encode(data[slice(*pieces[number])]))

    def _written(self, piece: Slice) -> None:
        self._spoke_s = self._sent_s = asyncio.get_running_loop().time()


def cut_rows(data: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """The start and end of each piece of the rows from `start` on, of about the size of one write."""
    while len(data) - start > BODY_PIECE_BYTES:
        end = data.rfind(b"\n", start, start + BODY_PIECE_BYTES) + 1
        if end <= start:  # one row is larger
            end = data.index(b"\n", start) + 1
        yield start, end
        start = end
    if start < len(data):
        yield start, len(data)
