"""Admission: decides which requests are accepted, by the rates of their sender and by the free memory.

`meet` is called first for every request, so that requests that fail for other reasons (no such path, no valid token)
also count for their address. `admit` is called when the identity is known. A request is refused with 429 and the time
after which it would be admitted, or with 503 while memory is short. A refused request takes nothing from a bucket. The
size of a response is known only afterwards: it is taken from the bucket then, and delays the next request.

If no limit is set, the dispatcher has no admission (None).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headwater.errors import OverloadedError, TooManyRequestsError
from headwater.limits import RETRY_AFTER_S, Limits
from headwater.server.forwarding import counted_address
from headwater.server.http import Request, Respond, Response
from headwater.server.memory import MemoryMark
from headwater.server.observing.probes import HEALTH
from headwater.server.rates import TokenBuckets
from headwater.server.watched_feeds import WatchedFeed

_STORING = frozenset({"POST", "PUT"})


class _Rate(NamedTuple):
    name: str  # of the limit
    per_s: int
    buckets: TokenBuckets
    is_bytes: bool


class Admission:
    def __init__(
        self, limits: Limits, memory: MemoryMark | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._now_s = now_s
        self._memory = memory
        self._of_address = _rates(limits, "address")
        self._of_identity = _rates(limits, "identity")
        self._meters = any(rate.is_bytes for rate in (*self._of_address, *self._of_identity))

    def __bool__(self) -> bool:
        return bool(self._of_address or self._of_identity or self._memory is not None)

    @property
    def knows_identities(self) -> bool:
        """Whether `admit` has anything to do."""
        return bool(self._of_identity or self._meters)

    def meet(self, request: Request) -> None:
        """Refuse a request by the rate of its address, or if memory is short."""
        if self._memory is not None and self._memory.short and request.method in _STORING:
            raise OverloadedError(self._memory.reason, retry_after_s=RETRY_AFTER_S)
        if self._of_address and request.path not in HEALTH:
            self._take(self._of_address, counted_address(request.peer), "from this address", request)

    def foresee(self, request: Request) -> None:
        """Refuse a request whose body has not arrived, if it would be refused now. Nothing is taken from a bucket."""
        if self._memory is not None and self._memory.short and request.method in _STORING:
            raise OverloadedError(self._memory.reason, retry_after_s=RETRY_AFTER_S)
        if request.path not in HEALTH:
            now_s = self._now_s()
            self._check(self._of_address, counted_address(request.peer), "from this address", request, now_s)
            self._check(self._of_identity, identity_of(request), "for this identity", request, now_s)

    def admit(self, request: Request, respond: Respond) -> Respond:
        """Refuse a request by the rates of its identity. The returned function counts the bytes of the response."""
        if request.path in HEALTH:
            return respond
        if self._of_identity:
            self._take(self._of_identity, identity_of(request), "for this identity", request)
        return self._metered(request, respond) if self._meters else respond

    def _take(self, rates: Iterable[_Rate], key: str, whose: str, request: Request) -> None:
        now_s = self._now_s()
        self._check(rates, key, whose, request, now_s)
        for rate in rates:
            rate.buckets.take(key, len(request.body) if rate.is_bytes else 1, now_s)

    def _check(self, rates: Iterable[_Rate], key: str, whose: str, request: Request, now_s: float) -> None:
        for rate in rates:
            wait_s = rate.buckets.wait_s(key, len(request.body) if rate.is_bytes else 1, now_s)
            if wait_s:
                what = "bytes" if rate.is_bytes else "requests"
                raise TooManyRequestsError(
                    f"more than {rate.per_s} {what} a second {whose} ({rate.name}); try again in {wait_s:.3g} s",
                    retry_after_s=wait_s,
                )

    def _metered(self, request: Request, respond: Respond) -> Respond:
        of_address = [(rate.buckets, counted_address(request.peer)) for rate in self._of_address if rate.is_bytes]
        of_identity = [(rate.buckets, identity_of(request)) for rate in self._of_identity if rate.is_bytes]
        counted = of_address + of_identity

        def sent(size_bytes: int) -> None:
            now_s = self._now_s()
            for buckets, key in counted:
                buckets.take(key, size_bytes, now_s)

        def metered(response: Response) -> None:
            sent(sum(map(len, response.body)))
            if response.feed is not None:
                response.feed = WatchedFeed(response.feed, sent=sent)
            respond(response)

        return metered


def _rates(limits: Limits, whose: str) -> tuple[_Rate, ...]:
    names = ((f"requests_per_s_per_{whose}", False), (f"bytes_per_s_per_{whose}", True))
    settings = [(name, getattr(limits, name), is_bytes) for name, is_bytes in names]
    return tuple([_Rate(name, per_s, TokenBuckets(per_s), is_bytes) for name, per_s, is_bytes in settings if per_s])


def identity_of(request: Request) -> str:
    """The identity that a request counts for."""
    return request.caller.counted(counted_address(request.peer))
