"""Servers whose machines do not agree on the time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.limits import Limits
from headwater.log.commands import Append, Create
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import PostgresDatabase
from headwater.store.postgres.opening import open_store
from tests.postgres import postgres

TEXT = "text/plain"
DAY_S = 86_400.0


def off_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S])
def test_a_stream_expires_by_the_time_of_the_database(off_s: float) -> None:
    """A server whose clock is ahead would delete what another one has just created, and what one whose clock is behind
    creates would be gone at once."""

    async def main() -> None:
        url = postgres().clean_database()
        limits = Limits(expiry_grace_s=0)
        engines = [Engine(await open_store(url, wall), limits) for wall in (time.time, off_by(off_s))]
        for engine in engines:
            await engine.start()
        try:
            for path, creator in zip("ab", engines, strict=True):
                await creator.execute(Create(path=path, now_ms=creator.now_ms(), content_type=TEXT, ttl_s=3_600))
                for engine in engines:
                    await engine.execute(Append(path, engine.now_ms(), b"x", TEXT))
                    assert (await engine.read(Read(path, bytes_max=100))).data.startswith(b"x")
        finally:
            for engine in engines:
                await engine.stop()

    asyncio.run(main())


def test_a_clock_that_is_set_during_the_measurement_is_measured_again() -> None:
    """As one for which the round trip took long: the middle of it is not when the database answered."""
    offs_s = [0.0]

    def own() -> float:
        return time.time() + (offs_s.pop(0) if offs_s else DAY_S)

    async def main() -> None:
        database = PostgresDatabase(postgres().clean_database(), "test")
        clock = DatabaseClock(own)
        async with await database.connect() as connection:
            await clock.compare(connection)
            assert clock.now_s() == pytest.approx(time.time(), abs=3_600)

    asyncio.run(main())


def test_a_clock_that_is_far_off_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    off_s = [0.0]

    async def main() -> None:
        database = PostgresDatabase(postgres().clean_database(), "test")
        clock = DatabaseClock(lambda: time.time() + off_s[0])
        async with await database.connect() as connection:
            for off_s[0], words in ((0.0, []), (DAY_S, ["ahead of"]), (DAY_S, []), (0.0, []), (-DAY_S, ["behind"])):
                caplog.clear()
                await clock.compare(connection)
                assert [word for word in ("ahead of", "behind") if word in caplog.text] == words
                assert clock.now_s() == pytest.approx(time.time(), abs=3_600)

    with caplog.at_level(logging.WARNING, "headwater.postgres"):
        asyncio.run(main())
