"""Tails: notify the live readers of a stream of every durable change."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from headwater import limits
from headwater.engine.large_reads import LargeReads
from headwater.engine.messages import Ended, Reason, Slice
from headwater.errors import HeadwaterError, OverloadedError


class Subscriber(Protocol):
    """A live reader: a `StreamFollower`. The engine never waits for it: if it falls behind, it reads from the store."""

    @property
    def kind(self) -> str:
        """Its name in metrics."""

    def deliver(self, update: Slice) -> None: ...

    def ended(self, reason: Reason) -> None: ...


class Tail:
    """The live readers of one stream: subscribers, and reads that wait for the next change.

    A few readers are notified at once. Many are notified over several loop iterations, so that other tasks can run in
    between. Updates that are published in the meantime are merged into one, which is sent next.

    The data of a large update counts while a reader has it (`large_reads.py`). If there is no room for it, the update
    has no data, and readers that want it read it from the store.
    """

    __slots__ = ("_deliveries", "_large", "_next", "_wakes", "subscribers", "waiters")

    def __init__(self, large: LargeReads) -> None:
        self._large = large
        self.subscribers: dict[Subscriber, None] = {}  # in order of subscription
        self.waiters: dict[asyncio.Future[None], None] = {}
        self._deliveries = PacedCalls(limits.DELIVERIES_PER_TURN, self._go_on)
        self._next: Slice | None = None  # sent after all readers have received the previous one
        self._wakes = PacedCalls(limits.WAKES_PER_TURN)

    @property
    def empty(self) -> bool:
        return not self.subscribers and not self.waiters

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next change, the end of the stream or the time-out.

        There are many such waits, and `asyncio.wait` takes another kilobyte for each."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self.waiters[waiter] = None
        timer = loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self.waiters.pop(waiter, None)

    def publish(self, update: Slice) -> None:
        self._wake()
        if self._deliveries.busy:
            self._next = update if self._next is None else _joined(self._next, update)
        else:
            self._tell(update)

    def end(self, reason: Ended) -> None:
        self._wake()
        self._go_on()
        self._deliveries.add([partial(subscriber.ended, reason) for subscriber in self.subscribers])

    def fail(self, error: HeadwaterError) -> None:
        """End all readers before anything else is read."""
        self._wake()
        self._next = None
        for subscriber in tuple(self.subscribers):
            subscriber.ended(error)

    def _go_on(self) -> None:
        update, self._next = self._next, None
        if update is not None:
            self._tell(update)

    def _tell(self, update: Slice) -> None:
        if len(update.data) > limits.LARGE_READ_BYTES:
            update = self._held(update)
        if self._deliveries.busy or len(self.subscribers) > limits.DELIVERIES_PER_TURN:
            self._deliveries.add([partial(subscriber.deliver, update) for subscriber in self.subscribers])
        else:
            for subscriber in tuple(self.subscribers):
                subscriber.deliver(update)

    def _held(self, update: Slice) -> Slice:
        try:
            held = self._large.hold(update.stream_id, update.start, update.next, update.data)
        except OverloadedError:
            return msgspec.structs.replace(update, start=update.next, data=b"")
        return msgspec.structs.replace(update, data=held.data, held=held)

    def _wake(self) -> None:
        if self.waiters:
            self._wakes.add([partial(_wake, waiter) for waiter in self.waiters])


class PacedCalls:
    """Run calls in order, a limited number per loop iteration, the first ones at once. Then call `done`."""

    __slots__ = ("_calls", "_done", "_per_turn")

    def __init__(self, per_turn: int, done: Callable[[], None] | None = None) -> None:
        self._per_turn = per_turn
        self._calls: deque[Callable[[], None]] = deque()
        self._done = done

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
            elif self._done is not None:
                self._done()


def _joined(first: Slice, second: Slice) -> Slice:
    """Merge two updates. If the result is too large, drop the first: readers then read it from the store."""
    if first.next != second.start or len(first.data) + len(second.data) > limits.UPDATE_BYTES_MAX:
        return second
    return msgspec.structs.replace(second, start=first.start, data=first.data + second.data, encoded={})


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
