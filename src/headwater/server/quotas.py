"""Quotas of prefixes: how the option writes them, and the limits on requests below a prefix.

    tenants/a streams=1000 bytes=10000000000 appends_per_s=100 live_readers=50

The numbers of streams and bytes are checked where writes are decided (`log/quotas.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from headwater.errors import HeadwaterError, TooManyRequestsError
from headwater.limits import LIVE_RETRY_AFTER_S
from headwater.log.quotas import Prefixes, PrefixQuota
from headwater.protocol.streams.paths import parse_path
from headwater.server.rates import TokenBuckets

_FIELDS = {
    "streams": "streams_max",
    "bytes": "bytes_max",
    "appends_per_s": "appends_per_s",
    "live_readers": "live_readers_max",
}


def parse_quotas(texts: Iterable[str]) -> Prefixes:
    quotas = [parse_quota(text) for text in texts]
    prefixes = Prefixes(quotas)
    if len(prefixes.by_prefix) < len(quotas):
        raise ValueError("a prefix has two quotas; give all its limits in one")
    return prefixes


def parse_quota(text: str) -> PrefixQuota:
    name, *limits = text.split()
    try:
        prefix = parse_path(name.strip("/"))
    except (HeadwaterError, ValueError) as error:
        raise ValueError(f"{name[:80]!r} is not the prefix of a path: {error}") from None
    if not limits:
        raise ValueError(f"the quota of {name[:80]!r} has no limits; there are {', '.join(_FIELDS)}, as streams=1000")
    found: dict[str, int] = {}
    for limit in limits:
        key, _, number = limit.partition("=")
        if key not in _FIELDS or _FIELDS[key] in found:
            raise ValueError(f"expected each of {', '.join(_FIELDS)} at most once, as streams=1000; got {limit[:80]!r}")
        if not number.isascii() or not number.isdigit() or not int(number):
            raise ValueError(f"{key} must be a whole number of more than 0, got {number[:40]!r}")
        found[_FIELDS[key]] = int(number)
    return msgspec.convert({"prefix": prefix, **found}, PrefixQuota)


class PrefixRates:
    """The rates of appends below prefixes. An append counts for every prefix that covers its path."""

    def __init__(self, prefixes: Prefixes, now_s: Callable[[], float] = time.monotonic) -> None:
        self._prefixes = prefixes
        self._now_s = now_s
        quotas = prefixes.by_prefix.values()
        self._buckets = {one.prefix: TokenBuckets(one.appends_per_s) for one in quotas if one.appends_per_s}

    def take(self, path: str) -> None:
        """Count an append, or refuse it. A refused append counts for no prefix."""
        quotas = [quota for quota in self._prefixes.of(path) if quota.appends_per_s]
        now_s = self._now_s()
        for quota in quotas:
            wait_s = self._buckets[quota.prefix].wait_s(quota.prefix, 1, now_s)
            if wait_s:
                raise TooManyRequestsError(
                    f"more than {quota.appends_per_s} appends a second below {quota.prefix!r}; try again in "
                    f"{wait_s:.3g} s",
                    retry_after_s=wait_s,
                )
        for quota in quotas:
            self._buckets[quota.prefix].take(quota.prefix, 1, now_s)


def check_readers(quota: PrefixQuota, readers: int) -> None:
    """Refuse another live reader below a prefix that has as many as it may."""
    if quota.live_readers_max and readers >= quota.live_readers_max:
        raise TooManyRequestsError(
            f"{readers} live readers are open below {quota.prefix!r}, and no more may be",
            retry_after_s=LIVE_RETRY_AFTER_S,
        )
