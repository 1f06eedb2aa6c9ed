"""A limit on concurrent requests with fair shares."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator


class FairSlots:
    """A limit on concurrent requests that several users share.

    A user may hold as many slots as are free. So one whose requests never end leaves half of the slots, two leave a
    third, and there is always one for a user that has none. Users that wait take turns.
    """

    def __init__(self, slots_max: int) -> None:
        self._free = slots_max
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by user; the next turn is that of the first

    @contextlib.asynccontextmanager
    async def held(self, user: str) -> AsyncIterator[None]:
        await self.acquire(user)
        try:
            yield
        finally:
            self.release(user)

    async def acquire(self, user: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(user)
            else:
                self._forget(user, turn)
            raise

    def _grant(self) -> None:
        """Give free slots to those that wait. A user that has got one then waits behind the others."""
        while self._free:
            # Few users are passed over: each of them holds a slot.
            user = next((one for one in self._waiting if self._held[one] < self._free), None)
            if user is None:
                return
            turns = self._waiting.pop(user)
            turn = turns.popleft()
            if turns:
                self._waiting[user] = turns
            if not turn.cancelled():
                self._held[user] += 1
                self._free -= 1
                turn.set_result(None)

    def release(self, user: str) -> None:
        self._held[user] -= 1
        if not self._held[user]:
            del self._held[user]
        self._free += 1
        self._grant()

    def _forget(self, user: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(user, deque())
        with contextlib.suppress(ValueError):  # it was passed over
            turns.remove(turn)
        if not turns:
            self._waiting.pop(user, None)
