"""Quotas of prefixes and tokens: how options write them, and the limits on their requests.

    tenants/a streams=1000 bytes=10000000000 appends_per_s=100 live_readers=50

The numbers of streams and bytes are checked where writes are decided (`log/quotas.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from headwater.errors import HeadwaterError, TooManyRequestsError
from headwater.limits import LIVE_RETRY_AFTER_S, QUOTA_MAX
from headwater.log.quotas import Prefixes, PrefixQuota, Quota, TokenQuotas
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
    return msgspec.convert({"name": prefix, **parse_limits(limits)}, PrefixQuota)


def parse_limits(limits: Iterable[str]) -> dict[str, int]:
    """The fields of a quota, from texts as `streams=1000`."""
    fields: dict[str, int] = {}
    for limit in limits:
        key, _, number = limit.partition("=")
        if key not in _FIELDS or _FIELDS[key] in fields:
            raise ValueError(f"expected each of {', '.join(_FIELDS)} at most once, as streams=1000; got {limit[:80]!r}")
        if not number.isascii() or not number.isdigit() or not number.strip("0"):
            raise ValueError(f"{key} must be a whole number of more than 0, got {number[:40]!r}")
        if len(number) > 19 or int(number) > QUOTA_MAX:
            raise ValueError(f"{key} is at most {QUOTA_MAX}, got {number[:40]}")
        fields[_FIELDS[key]] = int(number)
    return fields


class QuotaRates:
    """The rates of appends of prefixes and tokens. An append counts for every prefix that covers its path."""

    def __init__(
        self, prefixes: Prefixes, tokens: TokenQuotas | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._prefixes = prefixes
        self._tokens = tokens or TokenQuotas()
        self._now_s = now_s
        self._buckets: dict[str, TokenBuckets] = {}  # by the key of a quota

    def __bool__(self) -> bool:
        return bool(self._prefixes.by_prefix or self._tokens.by_name)

    def take(self, path: str, token: str = "") -> None:
        """Count an append, or refuse it. A refused append counts for no prefix and no token."""
        now_s, buckets = self._now_s(), self._check(path, token)
        for key, bucket in buckets:
            bucket.take(key, 1, now_s)

    def foresee(self, path: str, token: str = "") -> None:
        """Refuse an append whose body has not arrived, if it would be refused now. It is not counted."""
        self._check(path, token)

    def _check(self, path: str, token: str) -> list[tuple[str, TokenBuckets]]:
        now_s, buckets = self._now_s(), []
        for quota in (*self._prefixes.of(path), *self._tokens.of(token)):
            if quota.appends_per_s:
                bucket = self._bucket(quota)
                buckets.append((quota.key, bucket))
                wait_s = bucket.wait_s(quota.key, 1, now_s)
                if wait_s:
                    raise TooManyRequestsError(
                        f"more than {quota.appends_per_s} appends a second {quota.where}; try again in {wait_s:.3g} s",
                        retry_after_s=wait_s,
                    )
        return buckets

    def _bucket(self, quota: Quota) -> TokenBuckets:
        bucket = self._buckets.get(quota.key)
        if bucket is None or bucket.per_s != quota.appends_per_s:  # the quota of a token has changed
            bucket = self._buckets[quota.key] = TokenBuckets(quota.appends_per_s)
        return bucket


def check_readers(quota: Quota, readers: int, more: int = 1) -> None:
    """Refuse more live readers of a prefix or token than it may have."""
    if quota.live_readers_max and readers + more > quota.live_readers_max:
        count = "no more" if more == 1 else f"{more} more, of one connection, not"
        raise TooManyRequestsError(
            f"{readers} live readers {quota.where} are open, and {count} may be", retry_after_s=LIVE_RETRY_AFTER_S
        )
