"""The order of the appends of each producer, as they arrived.

Most appends are decided when they arrive. One that cannot be, because its body is parsed in a thread or its stream is
loaded, takes a place in the queue of its producer, and so do all that arrive after it: if one overtook it, it would be
refused because of a gap in the producer's sequence. There is one queue for a producer, whichever wire it uses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TypeAlias

ProducerKey: TypeAlias = tuple[str, str]  # a path and the id of a producer


class ProducerOrder:
    """The queues of producers that have appends which are not decided yet."""

    def __init__(self) -> None:
        self.queues: dict[ProducerKey, deque[Place]] = {}  # empty most of the time

    def __len__(self) -> int:
        return len(self.queues)

    def holds_back(self, key: ProducerKey | None) -> bool:
        """Whether an append of this producer must take a place."""
        queue = self.queues.get(key) if key is not None else None
        return queue is not None and not queue[0].is_deciding

    def enter(self, key: ProducerKey) -> Place:
        """Take the last place. It must be left, even if it was never reached."""
        queue = self.queues.setdefault(key, deque())
        place = Place(self, key)
        queue.append(place)
        queue[0].reached.set()
        return place

    def leave(self, key: ProducerKey, place: Place) -> None:
        queue = self.queues.get(key)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        if queue:
            queue[0].reached.set()
        else:
            del self.queues[key]


class Place:
    """A place in the queue of a producer. As a context manager it waits until it is the first, and then leaves it."""

    __slots__ = ("_key", "_order", "is_deciding", "reached")

    def __init__(self, order: ProducerOrder, key: ProducerKey) -> None:
        self._order = order
        self._key = key
        self.reached = asyncio.Event()
        self.is_deciding = False

    def leave(self) -> None:
        """Leave the queue. Leaving it again has no effect."""
        self._order.leave(self._key, self)

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """The append of the first place is submitted: it is not held back by its own place."""
        self.is_deciding = True
        try:
            yield
        finally:
            self.is_deciding = False

    async def __aenter__(self) -> Place:
        try:
            await self.reached.wait()
        except BaseException:
            self.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
