"""The observer: the edges report every response to it. It counts responses, assigns request ids, and calls watchers.

An append takes only 30 microseconds, so the cost per request must be small: for a 2xx response to a request that is not
timed, an edge only adds 1 to `successes`; for all others it calls `answered`. Every request is timed if there are few,
or if there is an access log or a tracer. Otherwise one of `TIMED_ONE_OF` is.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from headwater.limits import ROUTES_MAX, TIMED_ONE_OF, TIMED_PER_S_MAX
from headwater.measures import Histogram
from headwater.server.http import REQUEST_ID, Request, Response
from headwater.server.problems import with_request_id

if TYPE_CHECKING:
    from headwater.server.observing.audit import AuditLog

log = logging.getLogger("headwater.server")

_NO_SUCCESS = 300
_ERROR = 400
_INTERNAL = 500
_ALL = partial(next, itertools.repeat(True))
_SOME = (True, *[False] * (TIMED_ONE_OF - 1))
_SANE_ID = re.compile(r"[A-Za-z0-9._~:@/+=-]{1,128}")


class RequestWatcher(Protocol):
    """Gets every request from an observer: the access log or the tracer."""

    def note(self, request: Request, response: Response, took_s: float) -> None:
        """Record a request and its response."""

    def reopen(self) -> None:
        """Reopen files, which may have been renamed."""

    def close(self) -> None:
        """Write queued data. It may block briefly."""


class Connections(Protocol):
    """The connection metrics of an edge."""

    accepted: int  # since the start

    @property
    def open(self) -> int: ...

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are incomplete or wait."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that clients have not read."""


class Observer:
    def __init__(self, watchers: tuple[RequestWatcher, ...] = (), audit: AuditLog | None = None) -> None:
        self.audit = audit  # None: there is no audit log
        self.successes = [0] * (2 * ROUTES_MAX + 1)  # 2xx responses without a call of `answered`, by route
        self.others: dict[int, Counter[int]] = {}  # calls of `answered`, by route and status
        self.durations: dict[int, Histogram] = {}  # seconds until the head of a response, by route
        self.sent_bytes = 0  # of bodies, to clients
        self.connections: Connections | None = None  # set by the native edge
        self.loop_delays = Histogram()  # seconds that the loop was late
        self.watchers = watchers
        self.is_timed: Callable[[], bool] = _ALL  # whether to time the next request
        self._counted = 0

    def tick(self, over_s: float) -> None:
        """Decide how many of the next requests are timed. Called regularly."""
        before, self._counted = self._counted, sum(self.successes)
        many = self._counted - before > TIMED_PER_S_MAX * over_s and not self.watchers
        self.is_timed = partial(next, itertools.cycle(_SOME)) if many else _ALL

    def answered(self, request: Request, response: Response) -> None:
        """Record a response before it is sent. Adds the request id to it if needed."""
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
        """Record a response to input that is not a valid request."""
        self.answered(Request("", "", "", {}, b"", peer=peer, began_s=perf_counter()), response)

    def reopen(self) -> None:
        for one in self._logs:
            one.reopen()

    def close(self) -> None:
        for one in self._logs:
            one.close()

    @property
    def _logs(self) -> list[RequestWatcher | AuditLog]:
        return [*self.watchers] if self.audit is None else [*self.watchers, self.audit]

    def reloaded(self, what: str, fault: str) -> None:
        """A file was loaded again, or could not be."""
        if self.audit is not None:
            self.audit.reloaded(what, fault)

    def token_changed(self, action: str, name: str) -> None:
        """The auth file has a new token, or one less."""
        if self.audit is not None:
            self.audit.token_changed(action, name)

    def _pass_on(self, request: Request, response: Response, took_s: float) -> None:
        request_id = self.identify(request)
        if response.status == _INTERNAL:
            log.error("request %s: %s %s failed with status 500", request_id, request.method, request.path)
        if response.status >= _ERROR:
            with_request_id(response, request_id)
        response.headers = (*response.headers, (REQUEST_ID, request_id))
        for watcher in self.watchers:
            watcher.note(request, response, took_s)

    def identify(self, request: Request) -> str:
        """The id of a request: its X-Request-Id if that is valid, otherwise a new one."""
        if not request.id:
            request_id = request.headers.get(REQUEST_ID)
            if request_id is not None and _SANE_ID.fullmatch(request_id):
                request.id = request_id
            else:
                request.id = f"{random.getrandbits(64):016x}"
        return request.id

    def statuses(self, route: int) -> Counter[str]:
        """The number of responses of a route by class of status, such as `2xx`."""
        counts = Counter({"2xx": self.successes[route]})
        for status, count in self.others.get(route, {}).items():
            counts[f"{status // 100}xx"] += count
        return +counts
