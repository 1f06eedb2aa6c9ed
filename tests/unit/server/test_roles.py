"""The role that one of several servers has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from headwater.errors import UnavailableError
from headwater.server import roles
from headwater.server.roles import BACKGROUND, Role, SharedRole
from headwater.store.contract import HeldRole, SharedStore
from tests.waiting import wait_until_async


class Leases:
    """The leases of a store that several servers share."""

    def __init__(self) -> None:
        self.holder: object = None
        self.token = 0
        self.until_s = 0.0

    def store(self) -> LeaseStore:
        return LeaseStore(self)


class LeaseStore:
    """The store as one server sees it."""

    def __init__(self, leases: Leases) -> None:
        self.timeline = 0
        self.leases = leases
        self.is_lost = False  # whether the database cannot be reached

    async def hold(self, name: str, seconds: float) -> HeldRole | None:
        assert name == BACKGROUND
        if self.is_lost:
            raise UnavailableError("there is no database")
        leases, now_s = self.leases, time.monotonic()
        if leases.holder is not self:
            if leases.until_s > now_s:
                return None
            leases.holder = self
            leases.token += 1
        leases.until_s = now_s + seconds
        return HeldRole(name, leases.token, seconds)

    async def release(self, role: HeldRole) -> None:
        if self.is_lost:
            raise UnavailableError("there is no database")
        if self.leases.token == role.token:
            self.leases.until_s = 0.0


class Worker:
    """A server, and whether it does the work."""

    def __init__(self, leases: Leases, everyone: list[Worker]) -> None:
        self.store = leases.store()
        self.role = SharedRole(cast(SharedStore, self.store))
        self.works = False
        self.begun = 0
        self._everyone = everyone
        everyone.append(self)

    async def start(self) -> None:
        await self.role.start(self.begin, self.end)

    async def begin(self) -> None:
        assert not any(one.works and one.role.is_held for one in self._everyone), "two servers do the work"
        self.works = True
        self.begun += 1

    async def end(self) -> None:
        self.works = False

    async def stop(self) -> None:
        self.works = False
        await self.role.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "ROLE_S", 0.5)
    monkeypatch.setattr(roles, "ROLE_LOOK_S", 0.02)
    monkeypatch.setattr(roles, "ROLE_MARGIN_S", 0.2)


def run(body: Callable[[Worker, Worker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        leases, everyone = Leases(), list[Worker]()
        first, second = Worker(leases, everyone), Worker(leases, everyone)
        await first.start()
        await second.start()
        try:
            assert first.works
            assert not second.works
            await body(first, second)
        finally:
            await first.stop()
            await second.stop()

    asyncio.run(main())


def test_a_stopped_server_gives_the_role_up() -> None:
    async def body(first: Worker, second: Worker) -> None:
        await first.stop()
        await wait_until_async(lambda: second.works)
        assert (first.role.is_held, second.role.token) == (False, 2)

    run(body)


def test_a_server_that_cannot_renew_the_role_ends_its_work_before_another_one_begins() -> None:
    async def body(first: Worker, second: Worker) -> None:
        first.store.is_lost = True
        await wait_until_async(lambda: second.works)
        assert not first.works
        first.store.is_lost = False
        await second.stop()
        await wait_until_async(lambda: first.works)
        assert first.begun == 2

    run(body)


def test_a_server_that_hung_has_no_role_when_it_goes_on() -> None:
    """Nothing has run in its process, so nobody could tell it."""

    async def body(first: Worker, second: Worker) -> None:
        leases = first.store.leases
        time.sleep(0.4)  # noqa: ASYNC251 - the process hangs, for longer than it may use the role
        assert not first.role.is_held
        assert first.role.refusal() is not None
        leases.until_s = 0.0
        await second.store.hold(BACKGROUND, 0.5)  # the other one takes it at once
        await wait_until_async(lambda: second.works)
        assert not first.works

    run(body)


def test_the_work_begins_anew_when_another_database_took_the_place_of_the_former_one() -> None:
    async def body(first: Worker, second: Worker) -> None:
        first.store.timeline = 1
        assert not first.role.is_held  # at once: what the work has in memory may be lost
        await wait_until_async(lambda: first.begun + second.begun == 2)

    run(body)


def test_work_that_cannot_begin_is_tried_again() -> None:
    async def body(first: Worker, second: Worker) -> None:
        await first.stop()
        begin, failures = second.begin, 2

        async def failing() -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise UnavailableError("there is no database")
            await begin()

        await second.role.stop()
        await second.role.start(failing, second.end)
        await wait_until_async(lambda: second.works)
        assert not failures

    run(body)


def test_a_server_alone_has_the_role() -> None:
    role = Role()
    assert (role.is_held, role.refusal()) == (True, None)
