"""A stream as the engine holds it: the newest state for writers, the durable part of it for readers."""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine.tails import Tail
from headwater.errors import HeadwaterError
from headwater.log.values import StreamState


class Stream:
    __slots__ = ("closed", "gone", "live_tail", "pending", "state", "tail", "touched_ms", "used")

    def __init__(self, state: StreamState, *, durable: bool) -> None:
        self.state = state  # includes what was accepted and is not yet durable: writers decide on it
        self.tail = state.tail if durable else state.start  # readers see this much
        self.closed = state.closed and durable
        self.pending = 0  # accepted records that are not yet durable
        self.gone: Callable[[], HeadwaterError] | None = None  # what readers find once the stream is deleted
        self.live_tail: Tail | None = None
        self.used = True  # since the engine last looked for streams to let go of
        self.touched_ms = state.accessed_ms  # the last renewal that was recorded

    @property
    def id(self) -> int:
        return self.state.id
