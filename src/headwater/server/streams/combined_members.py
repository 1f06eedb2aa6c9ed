"""The streams of a subscription as those of a combined feed: streams that join it are followed as well."""

from __future__ import annotations

from headwater.engine.messages import VisibleStream
from headwater.errors import HeadwaterError, InvalidQueryError
from headwater.protocol.streams.combined import Reached, StreamStart, key_of
from headwater.server.http import Request
from headwater.server.live_places import LivePlace
from headwater.server.service import Service
from headwater.server.streams.combined_feeds import CLOSED, DELETED, REMOVED, CombinedFeed
from headwater.server.subscriptions.control import visible_subscription

_NOTHING = 0  # the id of no stream


class SubscribedStreams:
    """The `Membership` of a feed. A stream begins where the subscription has acked it."""

    def __init__(self, service: Service, request: Request, name: str) -> None:
        self._service = service
        self._request = request
        self._subscription = visible_subscription(service, request, name)
        self._feed: CombinedFeed | None = None
        self._joining: set[str] = set()
        # Streams of which nothing more is sent: the id of one that is at its end, None for any at the path.
        self._over: dict[str, int | None] = {}
        self._places: dict[str, LivePlace] = {}  # of streams that joined

    async def starts(self, reached: dict[int, Reached]) -> dict[int, StreamStart]:
        """The streams that exist now. One that the reader has read to its end, or that is closed and acked up to there,
        is left out. `reached` keeps only what the next id has to tell: ids of a reader that comes again and again would
        grow with all streams that there ever were."""
        starts: dict[int, StreamStart] = {}
        kept: set[int] = set()
        async for link in self._subscription.links.after(""):
            stream, key = link.stream, key_of(link.path)
            if stream is None:
                continue
            if key in starts:
                raise InvalidQueryError(f"{link.path!r} and {starts[key].path!r} have one key; follow them by stream=")
            place = reached.get(key)
            if place is not None and place.over and not _is_end(stream, place):
                place = None  # of an earlier stream at the path
            is_acked = stream.closed and link.lag_bytes == 0
            if place.over if place is not None else is_acked:
                self._over[link.path] = stream.id
                if not is_acked:
                    kept.add(key)
                continue
            if place is not None:
                kept.add(key)
            starts[key] = StreamStart(link.path, stream.offset(link.start))
            if len(starts) > self._service.limits.combined_streams_max:
                raise self._too_many()
        for key in reached.keys() - kept:
            del reached[key]
        return starts

    def begin(self, feed: CombinedFeed) -> None:
        self._feed = feed
        self._subscription.readers[self] = None
        self._service.tasks.start(self._join_all(feed))

    async def _join_all(self, feed: CombinedFeed) -> None:
        """Follow the streams that joined between the request and now."""
        async for link in self._subscription.links.after(""):
            if link.stream is not None:
                self.note(link.path)
            if not feed.is_open:
                return

    # From the subscription

    def note(self, path: str) -> None:
        """A stream of the subscription has new data."""
        feed = self._feed
        if path in self._joining or self._over.get(path, _NOTHING) is None:
            return
        if feed is not None and feed.is_open and key_of(path) not in feed:
            self._joining.add(path)
            self._service.tasks.start(self._join(feed, path))

    async def _join(self, feed: CombinedFeed, path: str) -> None:
        try:
            link = await self._subscription.links.find(path)
            is_new = key_of(path) not in feed and path in self and not self.is_over
            if link.stream is None or not is_new or not feed.is_open or self._is_at_end(path, link.stream):
                return
            self._over.pop(path, None)
            if len(feed) >= self._service.limits.combined_streams_max:
                raise self._too_many()
            place = self._service.places.claim(self._service.limits, self._request, path)
            if place is not None:
                place.take()
                self._places[path] = place
            feed.follow(key_of(path), path, link.stream, link.start)
        except HeadwaterError:
            feed.finish()  # the reader gets the error when it reconnects
        finally:
            self._joining.discard(path)

    def _is_at_end(self, path: str, stream: VisibleStream) -> bool:
        over = self._over.get(path, _NOTHING)
        return over is None or over == stream.id

    def _too_many(self) -> InvalidQueryError:
        most = self._service.limits.combined_streams_max
        return InvalidQueryError(
            f"the subscription {self._subscription.record.id!r} has more than {most} streams, and a connection follows "
            "no more (combined_streams_max)"
        )

    # As the membership

    @property
    def is_over(self) -> bool:
        return self._subscription.is_over

    def __contains__(self, path: str) -> bool:
        return path in self._subscription.links

    def left(self, path: str, end: str, stream_id: int) -> None:
        place = self._places.pop(path, None)
        if place is not None:
            place.leave()
        if end == CLOSED:
            self._over[path] = stream_id
        elif end in (DELETED, REMOVED):
            self.note(path)  # it may exist again
        else:  # it may not be read, or cannot be
            self._over[path] = None

    def close(self) -> None:
        self._feed = None
        self._subscription.readers.pop(self, None)
        for place in self._places.values():
            place.leave()


def _is_end(stream: VisibleStream, place: Reached) -> bool:
    """Whether a place is the end of this stream, and not of an earlier one at its path."""
    return stream.closed and place.offset == stream.offset(stream.tail)
