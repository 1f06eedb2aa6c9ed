"""Fair shares of a limited number of concurrent requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from headwater.outbound import FairSlots
from tests.waiting import wait_for_async


class Users:
    """Requests of users that end when they are told to."""

    def __init__(self, slots: FairSlots) -> None:
        self._slots = slots
        self.active: Counter[str] = Counter()
        self.order: list[str] = []
        self._ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, user: str, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._use(user)) for _ in range(count)]
        self.tasks += tasks
        return tasks

    async def _use(self, user: str) -> None:
        end = asyncio.Event()
        async with self._slots.held(user):
            self._ends.setdefault(user, []).append(end)
            self.active[user] += 1
            self.order.append(user)
            try:
                await end.wait()
            finally:
                self.active[user] -= 1

    def end(self, user: str) -> None:
        self._ends[user].pop().set()

    async def settled(self) -> dict[str, int]:
        """The active requests, when nothing more happens."""
        for _ in range(20):
            await asyncio.sleep(0)
        return {user: count for user, count in self.active.items() if count}

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def run(slots_max: int, work: Callable[[Users], Awaitable[None]]) -> None:
    async def main() -> None:
        slots = FairSlots(slots_max)
        users = Users(slots)
        await work(users)
        await users.close()
        users = Users(slots)  # everything was released
        users.ask("z")
        users.ask("z", slots_max)
        assert await users.settled() == {"z": (slots_max + 1) // 2}
        await users.close()

    asyncio.run(main())


def test_one_user_gets_half_two_a_third_and_there_is_always_one_for_another() -> None:
    async def work(users: Users) -> None:
        users.ask("a", 100)
        assert await users.settled() == {"a": 6}
        users.ask("b", 100)
        assert await users.settled() == {"a": 6, "b": 3}
        for _ in range(4):
            users.end("a")
        assert sum((await users.settled()).values()) < 12
        users.ask("c")
        assert (await users.settled())["c"] == 1

    run(12, work)


@pytest.mark.parametrize("slots_max", [1, 2, 3, 16])
def test_users_that_wait_take_turns(slots_max: int) -> None:
    async def work(users: Users) -> None:
        users.ask("a", 50)
        await users.settled()
        users.ask("b", 3)
        users.ask("c", 3)
        for _ in range(12):
            for user in await users.settled():
                users.end(user)
        await wait_for_async(lambda: Counter(users.order)["b"] + Counter(users.order)["c"], 6)

    run(slots_max, work)


def test_one_that_gives_up_leaves_its_place() -> None:
    async def work(users: Users) -> None:
        users.ask("a", 4)
        assert await users.settled() == {"a": 1}
        waiting = users.ask("b", 2)
        assert await users.settled() == {"a": 1, "b": 1}
        waiting[1].cancel()
        users.end("a")
        waiting[0].cancel()  # with the slot that it has
        assert await users.settled() == {"a": 1}

    run(2, work)
