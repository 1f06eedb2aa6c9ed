"""The pipeline of a connection: complete requests that wait for earlier ones."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from headwater.limits import HEADER_MEMORY_BYTES, REQUEST_MEMORY_BYTES, Limits
from headwater.server.budgets import Budget, Share
from headwater.server.http import Request

Waiting: TypeAlias = tuple[Request, bool]  # and whether the connection is kept alive after it


class RequestQueue(deque[Waiting]):
    """A first-in, first-out queue. It refuses nothing: the connection stops reading when it is full."""

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    @property
    def full(self) -> bool:
        limits = self._limits
        return len(self) >= limits.pipeline_requests_max or self.held_bytes > limits.pipeline_bytes_max

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the requests, which may be many times the bytes that were sent."""
        held = 0
        for request, _ in self:
            if not request.head_bytes:
                request.head_bytes = memory_of_head(request.headers)
            held += request.head_bytes + len(request.body)
        return held


class RequestMemory:
    """The memory that the requests of one connection take, in the budgets of all connections.

    Bytes ahead of what is authorized (heads, and requests that wait) have a smaller budget, so that strangers cannot
    stop the writes of others.
    """

    __slots__ = ("_ahead", "_all")

    def __init__(self, budget: Budget, ahead: Budget) -> None:
        self._all = Share(budget)
        self._ahead = Share(ahead)

    def __bool__(self) -> bool:
        return self._all.held_bytes > 0

    def hold(self, ahead_bytes: int, body_bytes: int) -> bool:
        """Set the memory. False if it grows and exceeds a budget."""
        fits = self._ahead.hold(ahead_bytes)
        return self._all.hold(ahead_bytes + body_bytes) and fits


def memory_of_head(headers: dict[str, str]) -> int:
    """The approximate memory of a request without its body."""
    text = sum([len(name) + len(value) for name, value in headers.items()])
    return REQUEST_MEMORY_BYTES + len(headers) * HEADER_MEMORY_BYTES + text
