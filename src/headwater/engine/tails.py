"""Tails: the live readers of each stream, told of every durable change."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headwater.engine.messages import Ended, Update


class Subscriber(Protocol):
    """A live reader. It is told, and never waited for: one that falls behind must read from the store."""

    def deliver(self, update: Update) -> None: ...

    def ended(self, reason: Ended) -> None: ...


class Tail:
    """The live readers of one stream: subscribers, and reads that wait for the next change."""

    __slots__ = ("subscribers", "waiters")

    def __init__(self) -> None:
        self.subscribers: dict[Subscriber, None] = {}  # in the order in which they came
        self.waiters: dict[asyncio.Future[None], None] = {}

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
        for subscriber in tuple(self.subscribers):
            subscriber.deliver(update)

    def end(self, reason: Ended) -> None:
        self._wake()
        for subscriber in tuple(self.subscribers):
            subscriber.ended(reason)

    def _wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
