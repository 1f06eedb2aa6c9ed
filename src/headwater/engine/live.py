"""Live readers: reads that wait for the next change, and subscribers that are notified of every change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.large_reads import LargeReads
from headwater.engine.messages import VisibleStream
from headwater.engine.tails import Subscriber, Tail
from headwater.engine.writer import Writer
from headwater.errors import HeadwaterError, StoppingError, StreamNotFoundError


class LiveReaders:
    def __init__(self, catalogue: Catalogue, writer: Writer, large: LargeReads, now_ms: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self._large = large
        self._now_ms = now_ms
        self._watched: dict[int, LoadedStream] = {}
        self._draining = False
        self.kinds: Counter[str] = Counter()  # subscribers
        self.waiting = 0  # reads that wait for the next change
        self.joined: Callable[[LoadedStream], None] | None = None  # told of a stream that has a new live reader

    async def renew_all(self) -> None:
        """Renew all streams with live readers, so that they do not expire, not even after a crash."""
        for count, stream in enumerate(list(self._watched.values()), 1):
            if stream.live is not None:  # it may have ended meanwhile
                self._writer.renew(stream, self._now_ms())
            if count % bounds.YIELD_EVERY_STREAMS == 0:
                await asyncio.sleep(0)
        self._writer.record_renewals()

    def watched(self) -> list[LoadedStream]:
        """The streams with live readers."""
        return list(self._watched.values())

    def end_all(self, error: HeadwaterError) -> None:
        """End all live readers, and those that are opened later may begin: what they have read may not be there."""
        watched, self._watched = self._watched, {}
        for stream in watched.values():
            tail, stream.live = stream.live, None
            if tail is not None:
                self.kinds.subtract(one.kind for one in tail.subscribers)
                tail.fail(error)

    def drain(self) -> None:
        """End all waiting reads; later ones return at once."""
        self._draining = True

    async def wait(self, stream: LoadedStream, position: int, timeout_s: float) -> None:
        """Wait until the stream has data after a position, is closed or deleted, or the timeout has passed."""
        if stream.tail > position or stream.closed or stream.deleted is not None or self._draining:
            return
        self.waiting += 1
        try:
            await self._tail_of(stream).wait(timeout_s)
        finally:
            self.waiting -= 1
            self._drop_tail(stream)

    def follow(self, stream_id: int, subscriber: Subscriber) -> VisibleStream:
        """Notify a subscriber of every change after the returned info. The stream must be loaded."""
        stream = self.followed(stream_id)
        stream.check_not_deleted()
        if self._draining:
            raise StoppingError("the server accepts no more live readers")
        subscribers = self._tail_of(stream).subscribers
        if subscriber not in subscribers:
            subscribers[subscriber] = None
            self.kinds[subscriber.kind] += 1
        return stream.info()

    def unfollow(self, stream_id: int, subscriber: Subscriber) -> None:
        stream = self._watched.get(stream_id)
        if stream is not None and stream.live is not None:
            if subscriber in stream.live.subscribers:
                del stream.live.subscribers[subscriber]
                self.kinds[subscriber.kind] -= 1
            self._drop_tail(stream)

    def followed(self, stream_id: int) -> LoadedStream:
        stream = self._catalogue.visible_by_id(stream_id)
        if stream is None:
            raise StreamNotFoundError("the stream was deleted")
        return stream

    def _drop_tail(self, stream: LoadedStream) -> None:
        if stream.live is not None and stream.live.empty:
            self._writer.renew(stream, self._now_ms())
            stream.live = None
            if self._watched.get(stream.id) is stream:
                del self._watched[stream.id]

    def _tail_of(self, stream: LoadedStream) -> Tail:
        if stream.live is None:
            stream.live = Tail(self._large)
            self._watched[stream.id] = stream
        if self.joined is not None:
            self.joined(stream)
        return stream.live
