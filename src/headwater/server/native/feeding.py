"""A feed on a connection. Everything that this edge knows of feeds is in this module."""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine import Engine
from headwater.engine.tails import Update
from headwater.server.feeds import FeedSession
from headwater.server.http import Feed
from headwater.server.native.writing import ResponseWriter, chunk_of


class FeedSink:
    """Writes the events of a feed as the body of a response, and calls `on_end` after the last of them."""

    __slots__ = ("_chunked", "_on_end", "_writer", "ended")

    def __init__(self, writer: ResponseWriter, on_end: Callable[[], None], *, chunked: bool) -> None:
        self._writer = writer
        self._on_end = on_end
        self._chunked = chunked
        self.ended = False

    @property
    def blocked(self) -> bool:
        return self._writer.blocked

    def write(self, frame: bytes) -> None:
        self._writer.write_piece(chunk_of(frame) if self._chunked else frame)

    def write_update(self, update: Update, cursor: int) -> None:
        self._writer.write_piece(update.chunk(cursor) if self._chunked else update.frame(cursor))

    def end(self) -> None:
        self.ended = True
        self._writer.end_body(chunked=self._chunked)
        self._on_end()


def open_feed(engine: Engine, feed: Feed, sink: FeedSink, now_s: float) -> FeedSession:
    """Start a feed. It may write at once, and even end: then `sink.ended` is set when this returns."""
    session = FeedSession(engine, feed, sink, now_s)
    session.start(feed.first)
    return session
