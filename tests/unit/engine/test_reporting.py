"""The report of an engine, and its busiest streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headwater.engine import Engine
from headwater.engine.messages import Read, Reason, Slice
from headwater.engine.reporting import Sampler
from headwater.log.commands import Append, Create
from headwater.store.memory import MemoryStore
from tests import virtual_time


class Reader:
    kind = "test"

    def deliver(self, update: Slice) -> None: ...

    def ended(self, reason: Reason) -> None: ...


def run(work: Callable[[Engine], Awaitable[None]]) -> None:
    async def running() -> None:
        engine = Engine(MemoryStore())
        await engine.start()
        try:
            await work(engine)
        finally:
            await engine.stop()

    virtual_time.run(running())


async def append(engine: Engine, path: str, data: bytes = b"12345678") -> None:
    await engine.execute(Append(path, engine.now_ms(), data, "text/plain"))


async def create(engine: Engine, *paths: str) -> None:
    for path in paths:
        await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type="text/plain"))


def test_commits_are_measured() -> None:
    async def work(engine: Engine) -> None:
        await create(engine, "a", "b")
        await asyncio.gather(*[append(engine, "a") for _ in range(10)])
        report = engine.report()
        assert (report.commit_sizes.count, report.commit_sizes.total) == (3, 12)
        assert report.commit_seconds.count == 3
        assert (report.committed_bytes, report.commit_failures) == (80, 0)
        assert (report.backlog_records, report.streams_loaded) == (0, 2)
        assert (report.refusing, report.full) == (None, None)
        engine.drain()
        assert engine.report().refusing is not None
        assert report.refusing is None

    run(work)


def test_live_readers_are_counted_by_their_kind() -> None:
    async def work(engine: Engine) -> None:
        await create(engine, "a")
        stream, reader = await engine.info("a"), Reader()
        for _ in range(2):  # a subscriber that follows twice counts once
            engine.follow(stream.id, reader)
        engine.follow(stream.id, Reader())
        waiting = asyncio.create_task(_wait(engine))
        await asyncio.sleep(0.01)
        assert (engine.report().subscribers, engine.report().waiting) == ({"test": 2}, 1)
        for _ in range(2):
            engine.unfollow(stream.id, reader)
        await append(engine, "a")
        await waiting
        assert (engine.report().subscribers, engine.report().waiting) == ({"test": 1}, 0)

    run(work)


async def _wait(engine: Engine) -> None:
    await engine.read(Read("a", None, wait_s=5))


def test_rates_are_the_difference_of_two_samples() -> None:
    async def work(engine: Engine) -> None:
        now_s = 0.0
        sampler = Sampler(engine._catalogue, lambda: now_s)
        await create(engine, "large", "busy", "idle")
        await append(engine, "large", b"x" * 1000)
        first = await sampler.busiest(10, by_size=False)
        assert (first.over_s, first.loaded) == (0.0, 3)
        assert first.streams[0].path == "large"  # there are no rates yet, so the largest is first
        for _ in range(4):
            await append(engine, "busy")
        now_s = 2.0
        second = await sampler.busiest(1, by_size=False)
        (busy,) = second.streams
        assert (busy.path, busy.bytes_per_s, busy.appends_per_s, busy.size) == ("busy", 16.0, 2.0, 32)
        assert [stream.path for stream in (await sampler.busiest(2, by_size=True)).streams] == ["large", "busy"]

    run(work)


def test_concurrent_requests_share_a_sample() -> None:
    async def work(engine: Engine) -> None:
        now_s = 0.0
        sampler = Sampler(engine._catalogue, lambda: now_s)
        await create(engine, "a")
        await sampler.busiest(1, by_size=False)
        now_s = 1.0
        await append(engine, "a")
        reports = await asyncio.gather(*[sampler.busiest(1, by_size=False) for _ in range(10)])
        assert {answer.over_s for answer in reports} == {1.0}
        assert {answer.streams[0].appends_per_s for answer in reports} == {1.0}

    run(work)
