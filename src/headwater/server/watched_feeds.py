"""Feeds with callbacks for their start, their end, and the bytes that they send."""

from __future__ import annotations

from collections.abc import Callable

from headwater.server.http import Feed, FeedAround, Frame, Sink


def _nothing() -> None:
    """The default callback for start and end."""


def _uncounted(_: int) -> None:
    """The default callback for bytes."""


class WatchedFeed(FeedAround):
    """A feed for the connection, and a sink for the wrapped feed."""

    __slots__ = ("_ended", "_opened", "_sent", "_sink")

    def __init__(
        self,
        feed: Feed,
        *,
        sent: Callable[[int], None] = _uncounted,
        opened: Callable[[], None] = _nothing,
        ended: Callable[[], None] = _nothing,
    ) -> None:
        super().__init__(feed)
        self._sent = sent
        self._opened = opened
        self._ended = ended
        self._sink: Sink | None = None

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        self._opened()
        self._feed.open(self, now_s)

    def cancel(self) -> None:
        super().cancel()
        self._over()

    # As the sink of the feed

    @property
    def _open_sink(self) -> Sink:
        if self._sink is None:
            raise RuntimeError("a feed wrote before it was opened")
        return self._sink

    @property
    def blocked(self) -> bool:
        return self._open_sink.blocked

    def write(self, frame: Frame) -> None:
        self._sent(len(frame.body))
        self._open_sink.write(frame)

    def end(self) -> None:
        self._over()
        self._open_sink.end()

    def abort(self) -> None:
        self._over()
        self._open_sink.abort()

    def _over(self) -> None:
        ended, self._ended = self._ended, _nothing
        ended()
