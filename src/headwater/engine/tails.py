"""Tails: the live readers of a stream, told of every durable change once, encoded once for all of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headwater.log.content import ContentKind
from headwater.protocol.streams import sse


class Update:
    """One durable change of a stream, as its live readers see it."""

    __slots__ = ("_chunks", "_data", "_frames", "closed", "end", "interval", "kind", "next_offset", "start")

    def __init__(
        self,
        kind: ContentKind,
        start: int,
        end: int,
        *,
        next_offset: str,
        interval: int,
        data: bytes,
        closed: bool,
    ) -> None:
        self.kind = kind
        self.start = start
        self.end = end
        self.next_offset = next_offset
        self.interval = interval  # the cursor of readers that are not ahead of it
        self.closed = closed
        self._data = data
        self._frames: dict[int, bytes] = {}
        self._chunks: dict[int, bytes] = {}

    def frame(self, cursor: int) -> bytes:
        """The events to send: data if there is any, then control. Encoded once for each cursor in use."""
        frame = self._frames.get(cursor)
        if frame is None:
            control = sse.control_frame(self.next_offset, cursor=cursor, up_to_date=True, closed=self.closed)
            frame = sse.data_frame(self.kind, self._data) + control if self._data else control
            self._frames[cursor] = frame
        return frame

    def chunk(self, cursor: int) -> bytes:
        """The same as one chunk of an HTTP/1.1 body."""
        chunk = self._chunks.get(cursor)
        if chunk is None:
            frame = self.frame(cursor)
            self._chunks[cursor] = chunk = b"%x\r\n%b\r\n" % (len(frame), frame)
        return chunk


class Subscriber(Protocol):
    """A reader that stays. It is told, and never asked to wait: one that lags must read from the store."""

    def deliver(self, update: Update) -> None: ...

    def gone(self) -> None: ...


class Tail:
    __slots__ = ("subscribers", "waiters")

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self.waiters: set[asyncio.Future[None]] = set()

    @property
    def empty(self) -> bool:
        return not self.subscribers and not self.waiters

    def publish(self, update: Update) -> None:
        self.wake()
        for subscriber in tuple(self.subscribers):
            subscriber.deliver(update)

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def end(self) -> None:
        """The stream is gone: nobody waits any longer."""
        self.wake()
        for subscriber in tuple(self.subscribers):
            subscriber.gone()
