"""Live reads: each is checked twice a second, and ends when its credential expires or is revoked."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from headwater.limits import AUTH_CHECK_S
from headwater.server.http import Feed, FeedAround


class Held:
    """A live read. `still_allowed` is called regularly; `end` ends the read."""

    __slots__ = ("__weakref__", "end", "still_allowed")

    def __init__(self, still_allowed: Callable[[], bool], end: Callable[[], None]) -> None:
        self.still_allowed = still_allowed
        self.end = end


class HeldFeed(FeedAround):
    """A response that stays open, referenced only by its connection."""

    __slots__ = ("__weakref__", "still_allowed")

    def __init__(self, still_allowed: Callable[[], bool], feed: Feed) -> None:
        super().__init__(feed)
        self.still_allowed = still_allowed

    def end(self) -> None:
        self.finish()


class HeldReads:
    """All live reads, by weak references."""

    def __init__(self) -> None:
        self._held: weakref.WeakSet[Held | HeldFeed] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, held: Held | HeldFeed) -> None:
        self._held.add(held)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AUTH_CHECK_S, self._look)

    def discard(self, held: Held) -> None:
        self._held.discard(held)

    def _look(self) -> None:
        self._timer = None
        self.end_those_not_allowed()
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(AUTH_CHECK_S, self._look)

    def end_those_not_allowed(self) -> None:
        for held in list(self._held):
            if not held.still_allowed():
                self._held.discard(held)
                held.end()
