"""The pipeline of a connection: complete requests that wait for earlier ones."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from headwater.limits import HEADER_MEMORY_BYTES, REQUEST_MEMORY_BYTES, Limits
from headwater.server.http import Request

Waiting: TypeAlias = tuple[Request, bool]  # and whether the connection is kept alive after it


class Pipeline(deque[Waiting]):
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


def memory_of_head(headers: dict[str, str]) -> int:
    """The approximate memory of a request without its body."""
    text = sum([len(name) + len(value) for name, value in headers.items()])
    return REQUEST_MEMORY_BYTES + len(headers) * HEADER_MEMORY_BYTES + text
