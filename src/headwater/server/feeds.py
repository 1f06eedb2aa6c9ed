"""A feed: one reader's server-sent events, from catching up to live and back when the reader lags.

A live reader is handed frames that were encoded once for everyone. One whose connection does not drain is not
buffered for: it misses them, and when it has drained it reads from the store until it has caught up again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from headwater.engine import Engine
from headwater.engine.tails import Update
from headwater.errors import HeadwaterError
from headwater.protocol.streams import sse
from headwater.protocol.streams.cursors import interval_at
from headwater.protocol.streams.offsets import offset_at
from headwater.server.http import Feed

log = logging.getLogger("headwater.server")


class Sink(Protocol):
    """Where a feed's events go."""

    @property
    def blocked(self) -> bool:
        """Whether what was written waits for the reader."""

    def write(self, frame: bytes) -> None: ...

    def write_update(self, update: Update, cursor: int) -> None: ...

    def end(self) -> None: ...


class FeedSession:
    __slots__ = (
        "_catching_up",
        "_cursor",
        "_ended",
        "_engine",
        "_opened_s",
        "_position",
        "_sink",
        "_spoke_s",
        "_stream",
        "_until",
    )

    def __init__(self, engine: Engine, feed: Feed, sink: Sink, now_s: float) -> None:
        self._engine = engine
        self._stream = feed.stream
        self._position = feed.position
        self._until = feed.until
        self._cursor = feed.cursor
        self._sink = sink
        self._opened_s = self._spoke_s = now_s
        self._catching_up: asyncio.Task[None] | None = None
        self._ended = False

    def start(self, first: bytes) -> None:
        """Speak at once: what is there already, or that there is nothing yet."""
        self._engine.subscribe(self._stream, self)
        if self._stream.gone is not None:
            self.finish()
            return
        self._advance(first)
        if not self._ended and self._position < self._stream.tail:
            self._read_on()

    # From the tail

    def deliver(self, update: Update) -> None:
        if self._ended or self._catching_up is not None:
            return
        if update.start != self._position or self._until is not None or self._sink.blocked:
            self._read_on()
            return
        self._sink.write_update(update, max(self._cursor, update.interval))
        self._position = update.end
        if update.closed:
            self.finish()

    def gone(self) -> None:
        self.finish()

    # From the connection

    def drained(self) -> None:
        behind = self._position < self._stream.tail or self._stream.closed
        if behind and not self._ended and self._catching_up is None:
            self._read_on()

    def tick(self, now_s: float) -> None:
        limits = self._engine.limits
        if now_s - self._opened_s >= limits.sse_lifetime_s:
            self.finish()
        elif now_s - self._spoke_s >= limits.sse_keep_alive_s and not self._sink.blocked:
            self._spoke_s = now_s
            self._sink.write(sse.KEEP_ALIVE)

    def finish(self) -> None:
        """End the response in good order."""
        if not self._ended:
            self.cancel()
            self._sink.end()

    def cancel(self) -> None:
        """The reader is gone, or nothing more will come."""
        self._ended = True
        self._engine.unsubscribe(self._stream, self)
        if self._catching_up is not None and self._catching_up is not asyncio.current_task():
            self._catching_up.cancel()

    # Catching up

    def _read_on(self) -> None:
        if not self._sink.blocked:
            self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            while not self._ended and not self._sink.blocked:
                end = self._stream.tail if self._until is None else self._until
                if self._position >= end and not self._stream.closed:
                    break
                data = await self._engine.read(self._stream, self._position, end, self._engine.limits.sse_chunk_bytes)
                if not self._ended:
                    self._advance(data)
        except HeadwaterError as error:
            log.info("a feed ended: %s", error)
            self.finish()
        except Exception:
            log.exception("a feed failed")
            self.finish()
        finally:
            self._catching_up = None

    def _advance(self, data: bytes) -> None:
        """Send what was read, and whether it reaches the tail."""
        stream, state = self._stream, self._stream.state
        self._position += len(data)
        at_tail = self._position == stream.tail
        closed = at_tail and stream.closed
        cursor = max(self._cursor, interval_at(self._engine.now_ms()))
        next_offset = offset_at(state, self._position)
        control = sse.control_frame(next_offset, cursor=cursor, up_to_date=at_tail, closed=closed)
        self._sink.write(sse.data_frame(state.kind, data) + control if data else control)
        if closed or (self._until is not None and self._position >= self._until):
            self.finish()
