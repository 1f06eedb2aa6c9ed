"""Protection against overload: limits the requests that start in one turn of the event loop, and refuses the others.

In one turn, asyncio handles all connections with data to read. Under overload a turn takes as long as all their
requests together, so all responses are late. Therefore a turn has a time limit, `request_wait_s_max`, and the duration
of the last turn determines how many requests fit. The others are refused, which costs far less than handling them. The
more are refused, the longer their Retry-After.

A turn with few requests refuses none: with few clients, the cause of a delay is not the number of requests. Neither is
it if the machine takes the processor away for a moment. So a pause between two requests does not count, and how many
requests fit follows from the cheaper of two turns.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import OverloadedError
from headwater.limits import OVERLOAD_RETRY_MAX_S, RETRY_AFTER_S, TURN_PAUSE_S, TURN_REQUESTS_MIN
from headwater.server.http import Response
from headwater.server.problems import problem

_LEAST_S = 1e-6
_now_s = time.monotonic


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class _Before(NamedTuple):
    """A turn with many requests."""

    begun: int
    work_s: float  # time to start them
    refusing_s: float  # time to refuse others
    ended_s: float  # when all were started or refused


class Turn:
    """`soon` schedules a call after all requests that have arrived are started."""

    __slots__ = (
        "_before",
        "_began_s",
        "_begun",
        "_cost_s",
        "_last_s",
        "_most",
        "_now_s",
        "_refusals",
        "_refused",
        "_refused_s",
        "_seconds",
        "_soon",
        "retry_s",
    )

    def __init__(
        self, seconds: float, soon: Callable[[Callable[[], None]], object] = _soon, now_s: Callable[[], float] = _now_s
    ) -> None:
        self._seconds = seconds
        self._soon = soon
        self._now_s = now_s
        self._most = math.inf  # requests in a turn
        self._begun = 0
        self._refused = 0
        self._cost_s = math.inf  # of a request, in the last turn with many
        self._began_s = 0.0  # later by the pauses since
        self._last_s = 0.0  # when the last request was begun
        self._refused_s = 0.0  # when the first of them was refused
        self._before: _Before | None = None  # the last turn, if the loop has not been idle since
        self.retry_s = RETRY_AFTER_S  # Retry-After of refused requests
        self._refusals: dict[float, Response] = {}  # cached, because many are sent when time is short

    def begin(self) -> bool:
        """Count a request. Returns whether it may be started."""
        if self._refused:
            self._refused += 1
            return False
        begun, now_s = self._begun, self._now_s()
        if not begun:
            self._open(now_s)
        elif now_s - self._last_s > TURN_PAUSE_S:
            self._began_s += now_s - self._last_s
        self._last_s = now_s
        if begun >= TURN_REQUESTS_MIN and (begun >= self._most or now_s - self._began_s > self._seconds):
            self._refused, self._refused_s = 1, now_s
            return False
        self._begun = begun + 1
        return True

    def _open(self, now_s: float) -> None:
        """Handle the first request of a turn. If the loop was not idle, the previous turn is complete now."""
        self._began_s = now_s
        before = self._before
        if before is None:
            self._soon(self._next)
            return
        # Sending the refusals takes about as long as creating them.
        took_s = before.work_s + max(0.0, self._began_s - before.ended_s - before.refusing_s)
        cost_s = max(took_s, _LEAST_S) / before.begun
        fit = max(TURN_REQUESTS_MIN, self._seconds / min(cost_s, self._cost_s))
        self._cost_s = cost_s
        self._most = fit if took_s > self._seconds else max(self._most, fit)

    def _next(self) -> None:
        """All requests that have arrived are started. Called in each turn, as long as there are many requests."""
        if self._begun < TURN_REQUESTS_MIN:
            self._before, self._most = None, math.inf
        else:
            now_s = self._now_s()
            begun_s = self._refused_s if self._refused else now_s
            self._before = _Before(self._begun, begun_s - self._began_s, now_s - begun_s, now_s)
            share = self._refused / (self._begun + self._refused)
            self.retry_s = RETRY_AFTER_S + round(share * (OVERLOAD_RETRY_MAX_S - RETRY_AFTER_S))
            self._soon(self._next)
        self._begun = self._refused = 0

    def refusal(self) -> Response:
        response = self._refusals.get(self.retry_s)
        if response is None:
            detail = f"the server is overloaded; try again in {self.retry_s:g} s"
            response = self._refusals[self.retry_s] = problem(OverloadedError(detail, retry_after_s=self.retry_s))
        return Response(response.status, response.headers, response.body)  # a copy, because headers are added to it
