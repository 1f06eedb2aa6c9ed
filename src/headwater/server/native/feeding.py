"""The sink of a feed: a connection whose response stays open."""

from __future__ import annotations

from collections.abc import Callable

from headwater.server.http import Frame
from headwater.server.native.writing import ResponseWriter


class FeedSink:
    """Writes the frames of a feed as the body of a response, and calls `on_end` after the last of them."""

    __slots__ = ("_chunked", "_on_end", "_writer", "ended")

    def __init__(self, writer: ResponseWriter, on_end: Callable[[], None], *, chunked: bool) -> None:
        self._writer = writer
        self._on_end = on_end
        self._chunked = chunked
        self.ended = False

    @property
    def blocked(self) -> bool:
        return self._writer.blocked

    def write(self, frame: Frame) -> None:
        self._writer.write_piece(frame.chunk if self._chunked else frame.body)

    def end(self) -> None:
        self.ended = True
        self._writer.end_body(chunked=self._chunked)
        self._on_end()
