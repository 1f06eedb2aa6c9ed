"""The observer: the edges report every response to it. It counts them, names failures, and writes the access log.

An append takes 30 microseconds in all, so that next to nothing may run for each: an edge adds 1 to `successes` for an
answer of 2xx to a request that is not timed, and calls `answered` for all others. Every request is timed while there
are few, or if there is an access log or a tracer. While there are many, one of `TIMED_ONE_OF` is.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from headwater.limits import ROUTES_MAX, TIMED_ONE_OF, TIMED_PER_S_MAX
from headwater.measures import Histogram
from headwater.server.http import REQUEST_ID, Request, Response
from headwater.server.problems import with_request_id

log = logging.getLogger("headwater.server")

_NO_SUCCESS = 300
_ERROR = 400
_INTERNAL = 500
_ALL = itertools.repeat(True)
_SOME = (True, *[False] * (TIMED_ONE_OF - 1))
_SANE_ID = re.compile(r"[A-Za-z0-9._~:@/+=-]{1,128}")


class Watcher(Protocol):
    """What an observer passes every request on to: the access log, the tracer."""

    def note(self, request: Request, response: Response, took_s: float) -> None:
        """A request was answered."""

    def reopen(self) -> None:
        """Files may have been renamed: go on with new ones."""

    def close(self) -> None:
        """Write what waits; it may block for a moment."""


class Connections(Protocol):
    """What an edge that has connections of its own tells about them."""

    accepted: int  # since the start

    @property
    def open(self) -> int: ...

    @property
    def request_bytes(self) -> int:
        """Of bodies that are incomplete, or wait for their turn."""

    @property
    def unread_bytes(self) -> int:
        """Of answers that clients have yet to read."""


class Observer:
    def __init__(self, watchers: tuple[Watcher, ...] = ()) -> None:
        self.successes = [0] * (2 * ROUTES_MAX + 1)  # answers of 2xx that `answered` was not called for, by route
        self.others: dict[int, Counter[int]] = {}  # those that it was called for, by route and status
        self.durations: dict[int, Histogram] = {}  # seconds until the head of an answer, by route
        self.sent_bytes = 0  # of bodies, to clients
        self.connections: Connections | None = None  # set by an edge that has some
        self.loop_delays = Histogram()  # seconds that the loop was late
        self.watchers = watchers
        self.is_timed: Callable[[], bool] = _ALL.__next__  # whether to time the next request
        self._counted = 0

    def tick(self, over_s: float) -> None:
        """Decide how many of the next requests are timed. To be called every now and then."""
        before, self._counted = self._counted, sum(self.successes)
        many = self._counted - before > TIMED_PER_S_MAX * over_s and not self.watchers
        self.is_timed = itertools.cycle(_SOME).__next__ if many else _ALL.__next__

    def answered(self, request: Request, response: Response) -> None:
        """A request is about to be answered. The response gets the id of the request where that may be asked for."""
        route, status, took_s = request.route, response.status, 0.0
        if request.began_s:
            took_s = perf_counter() - request.began_s
            times = self.durations.get(route)
            if times is None:
                times = self.durations[route] = Histogram()
            times.add(took_s)
        if status < _NO_SUCCESS:
            self.successes[route] += 1
        else:
            self.others.setdefault(route, Counter())[status] += 1
        if status >= _ERROR or self.watchers:
            self._pass_on(request, response, took_s)

    def refused(self, peer: str, response: Response) -> None:
        """Something was answered that never became a request."""
        self.answered(Request("", "", "", {}, b"", peer=peer, began_s=perf_counter()), response)

    def reopen(self) -> None:
        for watcher in self.watchers:
            watcher.reopen()

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()

    def _pass_on(self, request: Request, response: Response, took_s: float) -> None:
        request_id = self.identify(request)
        if response.status == _INTERNAL:
            log.error("request %s: %s %s was answered 500", request_id, request.method, request.path)
        if response.status >= _ERROR:
            with_request_id(response, request_id)
        response.headers = (*response.headers, (REQUEST_ID, request_id))
        for watcher in self.watchers:
            watcher.note(request, response, took_s)

    def identify(self, request: Request) -> str:
        """The id of a request: the one that it came with if that is sane, else a new one."""
        if not request.id:
            given = request.headers.get(REQUEST_ID)
            if given is not None and _SANE_ID.fullmatch(given):
                request.id = given
            else:
                request.id = f"{random.getrandbits(64):016x}"
        return request.id

    def statuses(self, route: int) -> Counter[str]:
        """How many answers of a route had a status of each class, as `2xx`."""
        found = Counter({"2xx": self.successes[route]})
        for status, count in self.others.get(route, {}).items():
            found[f"{status // 100}xx"] += count
        return +found
