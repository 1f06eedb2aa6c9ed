"""Keys in order, changed one at a time: a page of them can be found without sorting or scanning the others.

The keys are in runs of bounded length, as in the package sortedcontainers, of which the stores would use one class in a
hundred lines. Finding a run is a bisection, and a change moves the keys of one run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Generic, Protocol, TypeVar

from headwater.limits import SORTED_RUN_KEYS


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)


class SortedKeys(Generic[K]):
    """A sorted set."""

    def __init__(self) -> None:
        self._runs: list[list[K]] = []  # none is empty
        self._lasts: list[K] = []  # the last key of each run

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, key: K) -> None:
        at = min(bisect_left(self._lasts, key), len(self._runs) - 1)
        if at < 0:
            self._runs.append([key])
            self._lasts.append(key)
            return
        run = self._runs[at]
        place = bisect_left(run, key)
        if place < len(run) and run[place] == key:
            return
        run.insert(place, key)
        self._lasts[at] = run[-1]
        if len(run) > 2 * SORTED_RUN_KEYS:
            self._split(at)

    def _split(self, at: int) -> None:
        run = self._runs[at]
        self._runs[at : at + 1] = [run[:SORTED_RUN_KEYS], run[SORTED_RUN_KEYS:]]
        self._lasts.insert(at, run[SORTED_RUN_KEYS - 1])

    def discard(self, key: K) -> None:
        at = bisect_left(self._lasts, key)
        if at == len(self._runs):
            return
        run = self._runs[at]
        place = bisect_left(run, key)
        if run[place] != key:
            return
        del run[place]
        if run:
            self._lasts[at] = run[-1]
        else:
            del self._runs[at], self._lasts[at]

    def past(self, key: K, limit: int) -> list[K]:
        """Up to `limit` keys that sort after a key."""
        at = bisect_right(self._lasts, key)
        return [] if at == len(self._runs) else self._page(at, bisect_right(self._runs[at], key), limit)

    def since(self, key: K, limit: int) -> list[K]:
        """Up to `limit` keys from a key on, which need not be one of them."""
        at = bisect_left(self._lasts, key)
        return [] if at == len(self._runs) else self._page(at, bisect_left(self._runs[at], key), limit)

    def _page(self, at: int, place: int, limit: int) -> list[K]:
        page = self._runs[at][place : place + limit]
        while len(page) < limit and (at := at + 1) < len(self._runs):
            page += self._runs[at][: limit - len(page)]
        return page


def page_of(keys: SortedKeys[str], prefix: str, after: str, limit: int) -> list[str]:
    """Up to `limit` keys that have a prefix and sort after `after`."""
    page = keys.past(after, limit) if after >= prefix else keys.since(prefix, limit)
    if page and not page[-1].startswith(prefix):
        page = [key for key in page if key.startswith(prefix)]
    return page
