"""Live feeds: responses that follow a stream, or several. A wire adds how slices are encoded.

A small slice is one frame, which is written at once and is the same object for all readers. A large slice is written
in several frames, each when the connection has drained and it is the feed's turn, and nothing else is written before
its last frame. If a connection does not drain, nothing is kept for it: the follower reads what it missed.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine.follower import StreamFollower
from headwater.engine.messages import Ended, Reason, Slice
from headwater.limits import FRAMES_KEPT, SSE_LIFETIME_JITTER
from headwater.protocol.streams.sse import KEEP_ALIVE
from headwater.server.http import Frame, Sink
from headwater.server.service import Service

_KEEP_ALIVE = Frame(KEEP_ALIVE)


class LargeFrames:
    """The frames of a large slice, at least one, encoded one by one. The last few are kept for other readers of the
    slice, which are mostly at the same frame."""

    __slots__ = ("_encode", "_kept", "count")

    def __init__(self, count: int, encode: Callable[[int], bytes]) -> None:
        self.count = count
        self._encode = encode
        self._kept: dict[int, Frame] = {}

    def frame(self, number: int) -> Frame:
        frame = self._kept.get(number)
        if frame is None:
            frame = self._kept[number] = Frame(self._encode(number))
            if len(self._kept) > FRAMES_KEPT:
                del self._kept[next(iter(self._kept))]
        return frame


class SliceFeed:
    """The feed of a connection, which writes slices in frames."""

    __slots__ = ("_frames", "_is_over", "_number", "_service", "_sink", "_slice", "_waiting")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sink: Sink | None = None
        self._frames: LargeFrames | None = None  # of a slice that is being written
        self._number = 0  # of the next frame
        self._slice: Slice | None = None
        self._waiting = False  # until its turn
        self._is_over = False

    # From the connection

    def open(self, sink: Sink, now_s: float) -> None:
        if self._is_over:  # its token expired before it was opened
            sink.end()
            return
        self._sink = sink
        self._begin(now_s)

    def drained(self) -> None:
        if self._frames is None:
            self._resume()
        else:
            self._write_later()

    def finish(self) -> None:
        if not self._is_over:
            self.cancel()
            if self._sink is not None:
                self._sink.end()

    def cancel(self) -> None:
        self._is_over = True
        self._slice = self._frames = None
        self._close()

    @property
    def _has_room(self) -> bool:
        return self._frames is None and self._sink is not None and not self._sink.blocked

    # Of a wire

    def _begin(self, now_s: float) -> None:
        """Follow what the response is about."""
        raise NotImplementedError

    def _resume(self) -> None:
        """The connection has room."""
        raise NotImplementedError

    def _close(self) -> None:
        """Follow no more."""
        raise NotImplementedError

    # Large slices

    def _write_all(self, piece: Slice, frames: LargeFrames) -> None:
        self._slice, self._frames, self._number = piece, frames, 0
        self._write_later()

    def _written(self, piece: Slice) -> None:
        """The last frame of a slice was written."""

    def _write_later(self) -> None:
        """Ask for a turn, once."""
        if not self._waiting:
            self._waiting = True
            self._service.turns.ask(self._write_on)

    def _write_on(self) -> None:
        """Write the next frame if the connection has room; otherwise `drained` asks for another turn."""
        self._waiting = False
        piece, frames, sink = self._slice, self._frames, self._sink
        if piece is None or frames is None or sink is None or sink.blocked:
            return
        sink.write(frames.frame(self._number))
        self._number += 1
        if self._number < frames.count:
            self._write_later()
            return
        self._slice = self._frames = None
        self._written(piece)
        self._resume()


class LiveFeed(SliceFeed):
    """The consumer of one follower."""

    __slots__ = ("_follower", "_reason")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._follower: StreamFollower
        self._reason: Reason | None = None  # for the end after the frames of a slice

    def _resume(self) -> None:
        if self._reason is not None:
            self._end(self._reason)
        else:
            self._follower.resume()

    def _close(self) -> None:
        self._follower.close()

    # From the follower

    @property
    def ready(self) -> bool:
        return self._has_room

    def take(self, piece: Slice) -> bool:
        raise NotImplementedError

    def ended(self, reason: Reason) -> None:
        if self._frames is None or reason is Ended.DRAINING:
            self._end(reason)
        else:
            self._reason = reason

    # Of a wire

    def _end(self, reason: Reason) -> None:
        """Write the last frame, if there is one, and finish."""
        self.finish()


class EventLifetime:
    """How long a feed of server-sent events stays open, and when it has been silent for so long that proxies may close
    it. Feeds that were opened together end one after the other, so that their readers do not reconnect in one wave."""

    __slots__ = ("_keep_alive_s", "_lifetime_s", "_opened_s", "_spoke_s")

    def __init__(self, service: Service) -> None:
        self._keep_alive_s = service.limits.sse_keep_alive_s
        self._lifetime_s = service.limits.sse_lifetime_s * (1 - SSE_LIFETIME_JITTER * service.entropy())
        self._opened_s = self._spoke_s = 0.0

    def begin(self, now_s: float) -> None:
        self._opened_s = self._spoke_s = now_s

    def tick(self, now_s: float, feed: SliceFeed) -> None:
        """End the feed or write a keep-alive if it is time. Nothing is written between the frames of a slice."""
        sink = feed._sink
        if feed._frames is not None:
            self._spoke_s = now_s
        elif now_s - self._opened_s >= self._lifetime_s:
            feed.finish()
        elif now_s - self._spoke_s >= self._keep_alive_s and sink is not None and not sink.blocked:
            self._spoke_s = now_s
            sink.write(_KEEP_ALIVE)
