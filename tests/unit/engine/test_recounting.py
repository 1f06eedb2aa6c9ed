"""Quotas over a store that several servers share: each counts what it writes, and all of it again from time to time."""

from __future__ import annotations

import asyncio

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.errors import QuotaExceededError, TooManyStreamsError, UnavailableError
from headwater.limits import Limits
from headwater.log.commands import Delete
from headwater.log.quotas import Prefixes, PrefixQuota, TokenQuota, TokenQuotas, Usage
from headwater.store.contract import StatePage
from headwater.store.postgres.opening import open_store
from tests.postgres import postgres
from tests.unit.engine.test_engine import append, create
from tests.waiting import wait_until_async

QUOTA = PrefixQuota("a", streams_max=3, bytes_max=10)
OWNED = TokenQuota("shop", streams_max=3)


def test_what_others_delete_and_create_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of one server rose until it refused everything for ever, and that of the other one fell below zero."""
    monkeypatch.setattr(limits, "RECOUNT_S", 0.05)
    url = postgres().clean_database()

    async def main() -> None:
        one, other = [
            Engine(await open_store(url), usage=Usage(Prefixes([QUOTA]), TokenQuotas([OWNED]))) for _ in range(2)
        ]
        for engine in (one, other):
            await engine.start()

        async def agree(streams: int, size_bytes: int) -> None:
            for engine in (one, other):
                for quota in (QUOTA, OWNED):
                    await wait_until_async(lambda: engine.usage.of(quota).streams == streams)  # noqa: B023
                    await wait_until_async(lambda: engine.usage.of(quota).bytes == size_bytes)  # noqa: B023

        for _ in range(3):
            for number in range(3):
                await one.execute(create(one, f"a/{number}", body=b"xyz", owner="shop"))
            await agree(3, 9)
            with pytest.raises(TooManyStreamsError):
                await other.execute(create(other, "a/more"))
            with pytest.raises(QuotaExceededError):
                await other.execute(append(other, "a/1", b"xy"))
            for number in range(3):
                await other.execute(Delete(f"a/{number}", other.now_ms()))
            await agree(0, 0)
        for engine in (one, other):
            await engine.stop()

    asyncio.run(main())


def test_the_limit_of_streams_counts_what_others_create_and_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server refused streams although nearly all had been deleted at the other one, whose count fell below zero."""
    monkeypatch.setattr(limits, "RECOUNT_S", 0.05)
    url = postgres().clean_database()

    async def main() -> None:
        one, other = [Engine(await open_store(url), Limits(streams_max=3)) for _ in range(2)]
        for engine in (one, other):
            await engine.start()
        for _ in range(3):
            for number in range(3):
                await one.execute(create(one, f"a/{number}"))
            await wait_until_async(lambda: other.report().streams == 3)
            with pytest.raises(TooManyStreamsError):
                await other.execute(create(other, "a/more"))
            for number in range(3):
                await other.execute(Delete(f"a/{number}", other.now_ms()))
            await wait_until_async(lambda: (one.report().streams, other.report().streams) == (0, 0))
        for engine in (one, other):
            await engine.stop()

    asyncio.run(main())


def test_counting_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECOUNT_S", 0.01)
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)
        engine = Engine(store, usage=Usage(Prefixes([QUOTA])))
        await engine.start()
        page, failures = store.page, [UnavailableError("not available"), RuntimeError("a fault")]

        async def failing(prefix: str, after: str, limit: int) -> StatePage:
            if failures:
                raise failures.pop()
            return await page(prefix, after, limit)

        monkeypatch.setattr(store, "page", failing)
        await engine.execute(create(engine, "a/1", body=b"xyz"))
        engine.usage.add("a/2", "", 1, 5)  # of a stream that another server has deleted
        await wait_until_async(lambda: (engine.usage.of(QUOTA).streams, engine.usage.of(QUOTA).bytes) == (1, 3))
        await engine.stop()

    asyncio.run(main())
