"""Rate limits: a token bucket for each identity or address.

The capacity of a bucket is `RATE_BURST_S` of its rate. A bucket is stored as one number, the time when it is full
again. The number of buckets is bounded: the least recently used one is evicted, and starts full if it is needed again.
"""

from __future__ import annotations

from collections import OrderedDict

from headwater.limits import RATE_BURST_S, RATE_KEYS_MAX

_ROUNDING_S = 1e-9


class TokenBuckets:
    def __init__(self, per_s: float, keys_max: int = RATE_KEYS_MAX) -> None:
        self.per_s = per_s
        self._burst_s = max(RATE_BURST_S, 1 / per_s)  # at least one request
        self._keys_max = keys_max
        self._full_s: OrderedDict[str, float] = OrderedDict()  # when each bucket is full

    def __len__(self) -> int:
        return len(self._full_s)

    def wait_s(self, key: str, cost: float, now_s: float) -> float:
        """Seconds until `cost` can be taken; 0: now. If the cost exceeds the capacity, it can be taken from a full
        bucket, which is then in debt."""
        used_s = max(0.0, self._full_s.get(key, 0.0) - now_s)
        wait_s = used_s + min(cost / self.per_s, self._burst_s) - self._burst_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, key: str, cost: float, now_s: float) -> None:
        full_s = self._full_s
        full_s[key] = max(full_s.get(key, 0.0), now_s) + cost / self.per_s
        full_s.move_to_end(key)
        if len(full_s) > self._keys_max:
            full_s.popitem(last=False)
