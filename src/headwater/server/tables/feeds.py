"""A row feed: the rows of one read as a response that stays open, from catching up to live.

A finite response ends at a position: the end of the table at the time of the request, or of a range. A live response
continues with rows as they arrive, until none has arrived for `idle_s`, or for `timeout_s` in total. If `since_id` is
beyond the end of the table, the response waits for the rows after it.

Live readers get frames that are encoded once for all of them. If a connection does not drain, nothing is buffered for
it: when it has drained, it reads from the store until it has caught up again. A finite response that cannot be
completed is aborted, so that the client notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from headwater.engine.messages import Ended, ReadMore, ReadReply, RowPosition, StreamInfo, Update
from headwater.errors import HeadwaterError
from headwater.limits import BODY_PIECE_BYTES, ROW_PIECES_KEPT
from headwater.log.row_framing import position_after
from headwater.protocol.streams.sse import KEEP_ALIVE
from headwater.protocol.tables.sse import event_frames
from headwater.server.compression import Encoder
from headwater.server.http import Frame, Sink
from headwater.server.service import Service

log = logging.getLogger("headwater.server")

_KEEP_ALIVE = Frame(KEEP_ALIVE)


class _UpdateFrames:
    """The frames of an update. The engine passes the same update to all readers, so the last frame is cached."""

    __slots__ = ("_events", "_rows", "_update")

    def __init__(self) -> None:
        self._update: Update | None = None
        self._rows: Frame | None = None
        self._events: Frame | None = None

    def of(self, update: Update, *, events: bool) -> Frame:
        if update is not self._update:
            self._update, self._rows, self._events = update, None, None
        if events:
            if self._events is None:
                self._events = Frame(event_frames(update.data))
            return self._events
        if self._rows is None:
            self._rows = Frame(update.data)
        return self._rows


_frames = _UpdateFrames()


class _PieceFrames:
    """The frames of live readers that catch up. Readers of a table are mostly at the same position, for example after a
    large update, so the last few frames are cached and shared."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int, bool], Frame] = {}

    def of(self, table_id: int, start: int, rows: memoryview, *, events: bool) -> Frame:
        at = (table_id, start, len(rows), events)
        frame = self._kept.get(at)
        if frame is None:
            data = bytes(rows)
            frame = self._kept[at] = Frame(event_frames(data) if events else data)
            if len(self._kept) > ROW_PIECES_KEPT:
                del self._kept[next(iter(self._kept))]
        return frame


_piece_frames = _PieceFrames()


class RowFeed:
    __slots__ = (
        "_catching_up",
        "_closed",
        "_drained",
        "_encoder",
        "_end",
        "_ended",
        "_events",
        "_finite",
        "_first",
        "_idle_s",
        "_record",
        "_sent_s",
        "_service",
        "_since_id",
        "_sink",
        "_skip",
        "_spoke_s",
        "_table",
        "_tail",
        "_timer",
        "_until_s",
    )

    def __init__(
        self,
        service: Service,
        table: StreamInfo,
        start: RowPosition,
        *,
        since_id: int = 0,
        end: int | None = None,
        first: ReadReply | None = None,
        encoder: Encoder | None = None,
        timeout_s: float = 0.0,
        idle_s: float = 0.0,
        events: bool = False,
    ) -> None:
        self._service = service
        self._table = table
        self._record, self._skip = start.record, start.skip
        self._since_id = since_id if since_id > table.last_seqno else 0  # rows up to it do not exist yet
        self._end = end  # where the response ends, once that is known
        self._finite = end is not None
        self._first = first
        self._encoder = encoder
        self._until_s = timeout_s  # relative until `open`, then the deadline
        self._idle_s = idle_s
        self._events = events
        self._tail, self._closed = table.tail, table.closed
        self._spoke_s = self._sent_s = 0.0  # when the last row, and the last byte, was written
        self._sink: Sink | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None  # awaited while catching up
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def open(self, sink: Sink, now_s: float) -> None:
        if self._ended:  # its token expired before it was opened
            sink.end()
            return
        self._sink = sink
        now_s = asyncio.get_running_loop().time()
        self._spoke_s = self._sent_s = now_s
        self._until_s += now_s
        try:
            info = self._service.engine.follow(self._table.id, self)
        except HeadwaterError as error:
            if not self._finite:  # a finite response only prevents eviction of the table
                self._fail(error)
                return
        else:
            self._tail, self._closed = info.tail, info.closed
        if not self._finite:
            self._watch()
        self._go_on()

    @property
    def _target(self) -> int:
        return self._tail if self._end is None else self._end

    def _go_on(self) -> None:
        """Read the new rows or end the response, unless a read is in progress."""
        if self._ended or self._catching_up is not None or self._sink is None:
            return
        if self._record + self._skip < self._target:
            self._catching_up = asyncio.create_task(self._catch_up(self._sink))
        elif self._end is not None or self._closed:
            self._over()

    # From the engine

    def deliver(self, update: Update) -> None:
        self._tail = max(self._tail, update.end)  # a read may be ahead of the updates
        self._closed = self._closed or update.closed
        sink = self._sink
        if self._ended or self._end is not None or self._catching_up is not None or sink is None:
            return
        if self._skip or self._since_id or update.start != self._record or len(update.data) > BODY_PIECE_BYTES:
            self._go_on()
        elif not sink.blocked:
            if update.data:
                sink.write(_frames.of(update, events=self._events))
                self._record = update.end
                self._spoke_s = self._sent_s = asyncio.get_running_loop().time()
            if update.closed:
                self._over()

    def ended(self, reason: Ended) -> None:
        if not self._finite:
            self._over()

    # From the connection

    def drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        else:
            self._go_on()

    def tick(self, now_s: float) -> None:
        sink = self._sink
        if not self._events or self._ended or self._catching_up is not None or sink is None or sink.blocked:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._sent_s >= self._service.limits.sse_keep_alive_s:
            self._sent_s = now_s
            sink.write(_KEEP_ALIVE)

    def finish(self) -> None:
        """Nothing to do for a finite response: a client that reads gets all of it."""
        if not self._finite:
            self._over()

    def cancel(self) -> None:
        self._ended = True
        self._first = self._encoder = None
        self._service.engine.unfollow(self._table.id, self)
        if self._timer is not None:
            self._timer.cancel()
        if self._catching_up is not None and self._catching_up is not asyncio.current_task():
            self._catching_up.cancel()

    def _over(self) -> None:
        if self._ended:
            return
        encoder = self._encoder
        self.cancel()
        if self._sink is not None:
            if encoder is not None:
                self._sink.write(Frame(encoder.finish()))
            self._sink.end()

    def _fail(self, error: HeadwaterError) -> None:
        log.info("a row feed ended: %s", error)
        if not self._finite:
            self._over()
        elif not self._ended:
            self.cancel()
            if self._sink is not None:
                self._sink.abort()

    # Time

    def _watch(self) -> None:
        """End the response if its time is up, otherwise set a timer for the next check."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._catching_up is not None:
            self._spoke_s = now_s  # a blocked client is not idle
        left_s = min(self._until_s, self._spoke_s + self._idle_s) - now_s
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._watch)
        else:
            self._end = self._tail
            self._go_on()

    # Catching up

    async def _catch_up(self, sink: Sink) -> None:
        engine, limits = self._service.engine, self._service.limits
        bytes_max = limits.read_chunk_bytes if self._finite else min(limits.sse_chunk_bytes, BODY_PIECE_BYTES)
        try:
            while not self._ended and self._record + self._skip < self._target:
                await self._until_drained(sink)
                reply, self._first = self._first, None
                if reply is None:
                    reply = await engine.read_more(ReadMore(self._table.id, self._record, self._target, bytes_max))
                await self._write(sink, reply)
        except HeadwaterError as error:
            self._fail(error)
        except Exception:
            log.exception("a row feed failed")
            self._fail(HeadwaterError("a defect of the server"))
        finally:
            self._catching_up = None
        self._go_on()

    async def _write(self, sink: Sink, reply: ReadReply) -> None:
        """Write the data of a read as the client drains it. `reply` keeps large data in the memory budget."""
        start = self._skip
        if self._since_id:
            start += position_after(reply.data[start:], self._since_id)
            if start == len(reply.data):
                self._record, self._skip = reply.next, 0
                return
            self._since_id = 0
        for first, end in _pieces(reply.data, start):
            await self._until_drained(sink)
            if self._ended:
                return
            frame = await self._frame(reply, first, end)
            if frame.body:  # an encoder may return nothing, and an empty chunk would end the body
                await self._write_in_turn(sink, frame)
        self._record, self._skip = reply.next, 0
        self._spoke_s = self._sent_s = asyncio.get_running_loop().time()

    async def _until_drained(self, sink: Sink) -> None:
        while sink.blocked and not self._ended:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def _write_in_turn(self, sink: Sink, frame: Frame) -> None:
        """Write when it is its turn, because thousands of readers may write at the same time."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def write() -> None:
            if not written.done():  # otherwise the reader has disconnected
                try:
                    sink.write(frame)
                except Exception as error:  # noqa: BLE001 - raised where it is awaited
                    written.set_exception(error)
                else:
                    written.set_result(None)

        self._service.turns.ask(write)
        await written

    async def _frame(self, reply: ReadReply, start: int, end: int) -> Frame:
        if not self._finite:
            rows = memoryview(reply.data)[start:end]
            return _piece_frames.of(self._table.id, reply.start + start, rows, events=self._events)
        data = reply.data if end - start == len(reply.data) else reply.data[start:end]
        if self._encoder is None:
            return Frame(data)
        if len(data) <= self._service.limits.compress_inline_bytes:
            return Frame(self._encoder.encode(data))
        return Frame(await asyncio.get_running_loop().run_in_executor(None, self._encoder.encode, data))


def _pieces(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """The start and end of each piece of the rows from `start`, of about the size of one write."""
    while len(data) - start > BODY_PIECE_BYTES:
        end = data.rfind(b"\n", start, start + BODY_PIECE_BYTES) + 1
        if end <= start:  # one row is larger
            end = data.index(b"\n", start) + 1
        yield start, end
        start = end
    if start < len(data):
        yield start, len(data)
