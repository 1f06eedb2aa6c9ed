"""Turns: large responses are written in pieces, and long loops are interrupted, so that the event loop can run other
tasks in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from headwater.limits import TURNS_S

T = TypeVar("T")


async def in_turns(items: Iterable[T], per_turn: int) -> AsyncIterator[T]:
    """The items, with a turn for other tasks after so many of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % per_turn == 0:
            await asyncio.sleep(0)


class Turns:
    """A queue of writers. Each writes one piece when its turn comes, and asks for another turn if there is more."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def ask(self, write: Callable[[], None]) -> None:
        self._waiting.append(write)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._run)

    async def run(self, write: Callable[[], None]) -> None:
        """Write in a turn, and wait for it."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if not written.done():  # otherwise the reader has disconnected
                try:
                    write()
                except Exception as error:  # noqa: BLE001 - raised where it is awaited
                    written.set_exception(error)
                else:
                    written.set_result(None)

        self.ask(run)
        await written

    def _run(self) -> None:
        """Run turns for a few milliseconds; continue in the next turn of the event loop."""
        until_s = time.perf_counter() + TURNS_S
        try:
            while self._waiting:
                self._waiting.popleft()()
                if time.perf_counter() >= until_s:
                    break
        finally:  # other writers continue after a failure
            self._running = bool(self._waiting)
            if self._running:
                asyncio.get_running_loop().call_soon(self._run)
