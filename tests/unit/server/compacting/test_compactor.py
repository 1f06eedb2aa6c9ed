"""Which streams are compacted and when, and what happens if a run fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine.messages import FindRow, Read
from headwater.errors import ConflictError, HeadwaterError, StorageFullError, StreamNotFoundError
from headwater.limits import SNAPSHOT_PREFIX
from headwater.log.commands import Append, Compact, Create, Delete
from headwater.log.content import ContentKind
from headwater.log.retention import Retention
from headwater.server.compacting.compaction import SnapshotFailedError, SubprocessContent
from headwater.server.compacting.compactor import Compactor
from headwater.server.compacting.contents import ContentSize
from tests.compacting import LocalContent
from tests.unit.engine.test_compacting import FAST, Today, all_of
from tests.unit.engine.test_engine import create, with_engine
from tests.waiting import wait_until_async

AFTER_S = 20
COMPACTED = Retention(compact=True, compact_after_s=AFTER_S)
SMALL = msgspec.structs.replace(FAST, compact_bytes_min=1_000)


async def state_stream(engine: Engine, path: str = "a", *, updates: int = 60, keys: int = 3, **more: object) -> None:
    if engine.loaded(path) is None:
        await engine.execute(
            Create(path=path, now_ms=engine.now_ms(), content_type="application/json", **more)  # type: ignore[arg-type]
        )
    for number in range(updates):
        event = {"type": "t", "key": f"k{number % keys}", "value": number, "headers": {"operation": "upsert"}}
        await engine.execute(Append(path, engine.now_ms(), json.dumps(event).encode(), "application/json"))


async def values(engine: Engine, path: str = "a") -> dict[str, int]:
    """What a new reader has in the end."""
    newest = {}
    for message in json.loads(b"[%b]" % (await all_of(engine, path))[:-1]):
        if "operation" in message["headers"]:
            newest[message["key"]] = message["value"]
    return newest


async def begins_with_snapshot(engine: Engine, path: str = "a") -> bool:
    return (await engine.info(path)).begin < 0


def with_compactor(body: Callable[[Engine, Compactor], Awaitable[None]], clock: Today | None = None) -> None:
    async def run(engine: Engine) -> None:
        compactor = Compactor(engine, SMALL, LocalContent)
        await compactor.start()
        try:
            await body(engine, compactor)
        finally:
            await compactor.stop()

    with_engine(run, clock=clock or Today(), limits=SMALL)


def test_a_front_that_is_old_enough_is_replaced_again_and_again() -> None:
    clock = Today()

    async def body(engine: Engine, compactor: Compactor) -> None:
        await state_stream(engine, retention=COMPACTED)
        for generation in range(1, 4):
            await asyncio.sleep(AFTER_S)
            assert len((await engine.info("a")).names.snapshots) == generation - 1  # its clock stands still
            clock.ms += AFTER_S * 1000 + 1
            await wait_until_async(lambda: runs(compactor, generation))  # noqa: B023 - awaited here
            assert await values(engine) == {"k0": 57, "k1": 58, "k2": 59}
            await state_stream(engine)
        assert compactor.counts.before_bytes > 2 * compactor.counts.after_bytes > 0
        assert compactor.counts.failures == compactor.counts.failing == 0

    async def runs(compactor: Compactor, count: int) -> bool:
        return compactor.counts.runs == count

    with_compactor(body, clock)


def test_streams_are_found_at_the_start_when_they_are_created_and_when_their_retention_changes() -> None:
    clock = Today()

    async def run(engine: Engine) -> None:
        await state_stream(engine, "before", retention=COMPACTED)
        await state_stream(engine, "later")
        compactor = Compactor(engine, SMALL, LocalContent)
        await compactor.start()
        await state_stream(engine, "created", retention=COMPACTED)
        await engine.retain("later", (("compact", True), ("compact_after_s", AFTER_S)))
        await state_stream(engine, "never")
        clock.ms += AFTER_S * 1000 + 1
        for path in ("before", "created", "later"):
            await wait_until_async(lambda: begins_with_snapshot(engine, path))  # noqa: B023 - awaited here
        assert not await begins_with_snapshot(engine, "never")
        await engine.retain("later", (("compact", False), ("compact_after_s", None)))
        await state_stream(engine, "later")
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert len((await engine.info("later")).names.snapshots) == 1
        await compactor.stop()

    with_engine(run, clock=clock, limits=SMALL)


def test_a_front_that_would_not_shrink_to_half_is_tried_again_when_it_has_doubled() -> None:
    clock = Today()

    async def body(engine: Engine, compactor: Compactor) -> None:
        await state_stream(engine, updates=60, keys=50, retention=COMPACTED)
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert (compactor.counts.skipped, compactor.counts.runs) == (1, 0)
        await state_stream(engine, updates=30, keys=50)
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert (compactor.counts.skipped, compactor.counts.runs) == (1, 0)
        await state_stream(engine, updates=60, keys=50)
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert (compactor.counts.skipped, compactor.counts.runs) == (1, 1)
        result = await compactor.compact_now("a")
        assert (result.compacted, result.reason) == (False, "there is nothing new")

    with_compactor(body, clock)


def test_by_request_everything_is_replaced_at_once() -> None:
    async def body(engine: Engine, compactor: Compactor) -> None:
        await state_stream(engine)
        result = await compactor.compact_now("a")
        info = await engine.info("a")
        assert result.compacted
        assert (result.after_bytes, result.before_bytes) == (info.size(info.begin, info.tail), info.tail)
        assert await values(engine) == {"k0": 57, "k1": 58, "k2": 59}
        with pytest.raises(StreamNotFoundError):
            await compactor.compact_now("missing")
        await engine.execute(create(engine, "text"))
        with pytest.raises(ConflictError, match="only JSON streams"):
            await compactor.compact_now("text")
        await state_stream(engine, "plain", updates=0)
        for _ in range(9):
            await engine.execute(Append("plain", engine.now_ms(), b'[{"no":"event"}]', "application/json"))
        assert "the snapshot would have" in (await compactor.compact_now("plain")).reason

    with_compactor(body)


def test_a_table_and_a_mirror_are_compacted() -> None:
    clock = Today()

    async def body(engine: Engine, compactor: Compactor) -> None:
        for path, kind in (("\x01t", ContentKind.ROWS), ("\x01m", ContentKind.MIRROR)):
            await engine.execute(
                Create(path=path, now_ms=clock.ms, content_type="text/sequence", kind=kind, retention=COMPACTED)
            )
        for number in range(1, 61):
            change = b"-\tk0\t" if number == 31 else b"+\tk%d\t%d" % (number % 3, number)
            await engine.execute(Append("\x01t", clock.ms, change, "text/sequence"))
            row = b"%d\t2020-01-01T00:00:00Z\t%b\n" % (10 * number, change)
            await engine.execute(Append("\x01m", clock.ms, row, "text/sequence"))
        clock.ms += round(SMALL.compact_deletions_s) * 1000 + AFTER_S * 1000
        for path, last in (("\x01t", 60), ("\x01m", 600)):
            await wait_until_async(lambda: begins_with_snapshot(engine, path))  # noqa: B023 - awaited here
            data = await all_of(engine, path)
            assert [int(row.split(b"\t")[0]) for row in data.splitlines()] == [
                last * 58 // 60,
                last * 59 // 60,
                last,
            ]
            info = await engine.info(path)
            assert (info.last_seqno, info.names.snapshots[0].seqno, info.names.snapshots[0].complete_since) == (
                last,
                last,
                0,  # the deletion was undone
            )
            assert (await engine.find_row(FindRow(path, -1))).since_id == last - 1

    with_compactor(body, clock)


class FailingContent(LocalContent):
    failures = 2

    async def finish(self) -> ContentSize:
        if FailingContent.failures:
            FailingContent.failures -= 1
            raise SnapshotFailedError("its process ended with code -9")
        return await super().finish()


def test_a_run_that_failed_is_repeated_later_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Today()

    async def run(engine: Engine) -> None:
        await state_stream(engine, retention=COMPACTED)
        clock.ms += AFTER_S * 1000 + 1
        compactor = Compactor(engine, SMALL, FailingContent)
        await compactor.start()
        await wait_until_async(lambda: begins_with_snapshot(engine))
        assert (compactor.counts.failures, compactor.counts.runs) == (2, 1)
        await compactor.stop()

    with caplog.at_level(logging.WARNING, "headwater"):
        with_engine(run, clock=clock, limits=SMALL)
    assert [record.getMessage() for record in caplog.records] == [
        "compacting 'a' failed, again in 10 s: its process ended with code -9"
    ]


def test_what_an_interrupted_run_has_written_is_deleted() -> None:
    """If it fails at once, otherwise at the next start."""

    async def run(engine: Engine) -> None:
        await state_stream(engine)
        compactor = Compactor(engine, SMALL, LocalContent)
        execute = engine.execute

        async def refusing(command: object) -> object:
            if isinstance(command, Compact):
                raise StorageFullError("no space left")
            return await execute(command)  # type: ignore[arg-type]

        engine.execute = refusing  # type: ignore[assignment, method-assign]
        with pytest.raises(HeadwaterError):
            await compactor.compact_now("a")
        assert (await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states == []

        died: list[object] = []

        async def dying(command: object) -> object:
            if isinstance(command, Compact) or died:
                died.append(command)
                raise asyncio.CancelledError
            return await execute(command)  # type: ignore[arg-type]

        engine.execute = dying  # type: ignore[assignment, method-assign]
        with pytest.raises(asyncio.CancelledError):
            await compactor.compact_now("a")
        engine.execute = execute  # type: ignore[method-assign]
        assert len((await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states) == 1
        await engine.execute(Create(path="b", now_ms=engine.now_ms(), content_type="application/json"))
        await state_stream(engine, "b")
        assert (await compactor.compact_now("b")).compacted
        again = Compactor(engine, SMALL, LocalContent)
        await again.start()
        assert [state.path for state in (await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states] == [
            (await engine._store.load_id((await engine.info("b")).names.snapshots[0].id)).path  # type: ignore[union-attr]
        ]
        assert (await again.compact_now("a")).compacted
        await again.stop()

    with_engine(run, clock=Today(), limits=SMALL)


def test_a_stream_that_is_deleted_meanwhile_is_forgotten() -> None:
    clock = Today()

    async def body(engine: Engine, compactor: Compactor) -> None:
        await state_stream(engine, retention=COMPACTED)
        await engine.execute(Delete("a", clock.ms))
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert compactor._candidates == {}

    with_compactor(body, clock)


def test_streams_with_too_little_that_is_new_are_not_looked_at() -> None:
    """Many streams of a pattern that are hardly written to cost nothing."""
    clock = Today()

    async def run(engine: Engine) -> None:
        for number in range(30):
            await state_stream(engine, f"s/{number}", updates=5, retention=COMPACTED)
        compactor = Compactor(engine, SMALL, LocalContent)
        await compactor.start()
        await state_stream(engine, "s/new", updates=5, retention=COMPACTED)
        clock.ms += AFTER_S * 1000 + 1
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert compactor._candidates == {}
        await state_stream(engine, "s/7")
        assert list(compactor._candidates) == ["s/7"]
        clock.ms += AFTER_S * 1000 + 1
        await wait_until_async(lambda: begins_with_snapshot(engine, "s/7"))
        await asyncio.sleep(2 * limits.COMPACT_LOOK_S_MAX)
        assert compactor._candidates == {}
        await compactor.stop()

    with_engine(run, clock=clock, limits=SMALL)


def test_appends_and_trims_during_a_run_are_kept() -> None:
    class Slow(LocalContent):
        async def finish(self) -> ContentSize:
            await asyncio.sleep(10)
            return await super().finish()

    async def run(engine: Engine) -> None:
        await state_stream(engine)
        compactor = Compactor(engine, SMALL, Slow)
        running = asyncio.create_task(compactor.compact_now("a"))
        await asyncio.sleep(5)
        await state_stream(engine, updates=1)
        assert (await running).compacted
        assert await values(engine) == {"k0": 0, "k1": 58, "k2": 59}
        running = asyncio.create_task(compactor.compact_now("a"))
        await asyncio.sleep(5)
        await engine.trim("a")  # the snapshot must not bring back what the user has removed
        with pytest.raises(ConflictError):
            await running
        assert await all_of(engine, "a") == b""

    with_engine(run, clock=Today(), limits=SMALL)


# With the process


def test_a_snapshot_is_computed_in_a_process_of_its_own() -> None:
    async def run(engine: Engine) -> None:
        await state_stream(engine)
        await engine.execute(
            Append("a", engine.now_ms(), json.dumps("x" * 300_000).encode(), "application/json")  # one large record
        )
        result = await Compactor(engine, SMALL).compact_now("a")
        assert result.compacted
        assert json.loads(b"[%b]" % (await engine.read(Read("a"))).data[:-1]) == ["x" * 300_000]

    with_engine(run, run=asyncio.run)


@pytest.mark.parametrize("moment", ["begin", "add", "finish", "record"])
def test_the_process_may_be_killed_at_any_moment(moment: str) -> None:
    class Killed(SubprocessContent):
        async def kill_at(self, now: str) -> None:
            process = self._worker._process
            if now == moment and process is not None:
                os.kill(process.pid, signal.SIGKILL)

        async def add(self, data: bytes) -> None:
            await super().add(data)
            await self.kill_at("begin")
            await self.kill_at("add")

        async def finish(self) -> ContentSize:
            size = await super().finish()
            await self.kill_at("finish")
            return size

        async def record(self, size_bytes: int) -> bytes:
            record = await super().record(1)
            await self.kill_at("record")
            return record

    async def run(engine: Engine) -> None:
        await state_stream(engine)
        with pytest.raises(SnapshotFailedError, match="its process ended with code"):
            await Compactor(engine, SMALL, Killed).compact_now("a")
        assert await values(engine) == {"k0": 57, "k1": 58, "k2": 59}
        assert (await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states == []
        assert (await Compactor(engine, SMALL).compact_now("a")).compacted

    with_engine(run, run=asyncio.run)
