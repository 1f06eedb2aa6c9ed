"""Tails: the live readers of each stream, told of every durable change."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from headwater import limits
from headwater.engine.messages import Ended, Update


class Subscriber(Protocol):
    """A live reader. It is told, and never waited for: one that falls behind must read from the store."""

    def deliver(self, update: Update) -> None: ...

    def ended(self, reason: Ended) -> None: ...


class Tail:
    """The live readers of one stream: subscribers, and reads that wait for the next change.

    Few are told at once. Many are told in several turns of the loop, which goes on with other work in between.
    """

    __slots__ = ("_told", "_woken", "subscribers", "waiters")

    def __init__(self) -> None:
        self.subscribers: dict[Subscriber, None] = {}  # in the order in which they came
        self.waiters: dict[asyncio.Future[None], None] = {}
        self._told = Turns(limits.TOLD_PER_TURN)
        self._woken = Turns(limits.WOKEN_PER_TURN)

    @property
    def empty(self) -> bool:
        return not self.subscribers and not self.waiters

    async def wait(self, timeout_s: float) -> None:
        """Until the next change, or the end."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters[waiter] = None
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self.waiters.pop(waiter, None)

    def publish(self, update: Update) -> None:
        self._wake()
        if self._told.busy or len(self.subscribers) > limits.TOLD_PER_TURN:
            self._told.add([partial(subscriber.deliver, update) for subscriber in self.subscribers])
        else:
            for subscriber in tuple(self.subscribers):
                subscriber.deliver(update)

    def end(self, reason: Ended) -> None:
        self._wake()
        self._told.add([partial(subscriber.ended, reason) for subscriber in self.subscribers])

    def _wake(self) -> None:
        if self.waiters:
            self._woken.add([partial(_wake, waiter) for waiter in self.waiters])


class Turns:
    """Calls in order, so many in one turn of the loop: the first ones at once."""

    __slots__ = ("_calls", "_per_turn")

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._calls: deque[Callable[[], None]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def add(self, calls: Iterable[Callable[[], None]]) -> None:
        waiting = bool(self._calls)
        self._calls.extend(calls)
        if not waiting:
            self._call_some()

    def _call_some(self) -> None:
        try:
            for _ in range(min(self._per_turn, len(self._calls))):
                self._calls.popleft()()
        finally:
            if self._calls:
                asyncio.get_running_loop().call_soon(self._call_some)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
