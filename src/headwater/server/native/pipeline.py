"""The pipeline of a connection: complete requests that wait for earlier ones."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from headwater.limits import Limits
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
        return sum([len(request.body) + request.head_bytes for request, _ in self])
