"""Retention: what is kept of a stream, and trims by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine.catalogue import LoadedStream
from headwater.engine.clock import SteadyClock
from headwater.engine.messages import FindRow, Read, ReadMore
from headwater.engine.retaining import TrimCause
from headwater.errors import ConfigurationError, InvalidOffsetError, OffsetTrimmedError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest, Reply
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.quotas import Prefixes, PrefixQuota, Usage
from headwater.log.retention import Counted, Retention
from headwater.store.memory import MemoryStore
from tests.unit.engine.test_engine import ManualClock, append, create, with_engine
from tests.waiting import wait_for_async

FAST = Limits(expiry_sweep_s=0.1, expiry_grace_s=0)


def test_many_streams_that_become_due_together_are_evicted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRE_STREAMS_MAX", 5)
    monkeypatch.setattr(limits, "EXPIRE_EVICT_STEPS", 2)
    clock = ManualClock()
    settings = msgspec.structs.replace(FAST, streams_loaded_max=20)
    loaded: list[int] = []

    async def body(engine: Engine) -> None:
        paths = [f"s/{number}" for number in range(200)]
        for path in paths:
            await engine.execute(create(engine, path, retention=Retention(seconds=60)))
            await engine.execute(append(engine, path, b"old"))
        await asyncio.sleep(1)
        trim = engine._housekeeping._trim

        async def counting(path: str) -> None:
            await trim(path)
            loaded.append(sum(engine.loaded(one) is not None for one in paths))

        engine._housekeeping._trim = counting
        clock.ms += 61_000
        await wait_for_async(lambda: number_of_trims(engine), len(paths))

    async def number_of_trims(engine: Engine) -> int:
        return engine._retainer.trims.counts[TrimCause.RETENTION]

    with_engine(body, clock=clock, limits=settings)
    assert max(loaded) <= 20 + 2 * 2 * 5 + 5


async def content(engine: Engine, path: str) -> bytes:
    return (await engine.read(Read(path, bytes_max=1_000_000))).data


async def fill(engine: Engine, count: int, retention: Retention | None = None) -> list[Offset]:
    """A stream with records of two bytes. Returns the offset after each."""
    await engine.execute(create(engine, "a", retention=retention))
    replies = [await engine.execute(append(engine, "a", b"%02d" % n)) for n in range(count)]
    return [reply.tail for reply in replies if reply.tail is not None]


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(bytes=6), b"070809"),
        (Retention(bytes=7), b"070809"),
        (Retention(bytes=1), b"09"),  # at least the last record
        (Retention(messages=4), b"06070809"),
        (Retention(messages=4, bytes=6), b"070809"),
        (Retention(messages=100, bytes=100, seconds=100), b"00010203040506070809"),
    ],
)
def test_what_is_kept(retention: Retention, left: bytes) -> None:
    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 10, retention)
        await wait_for_async(lambda: content(engine, "a"), left)
        info = await engine.info("a")
        assert (info.first, info.tail, info.retention) == (20 - len(left), 20, retention)
        assert (await engine.read(Read("a", info.first_offset, bytes_max=100))).data == left
        for offset in offsets:
            if offset.position < info.first:
                with pytest.raises(OffsetTrimmedError) as error:
                    await engine.read(Read("a", offset))
                assert error.value.first == (info.id, info.first)

    with_engine(body, limits=FAST)


def test_records_that_are_too_old_go() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await fill(engine, 3, Retention(seconds=10))
        clock.ms += 9_000
        await engine.execute(append(engine, "a", b"03"))
        await asyncio.sleep(1)
        assert await content(engine, "a") == b"00010203"
        clock.ms += 1_001
        await wait_for_async(lambda: content(engine, "a"), b"03")
        clock.ms += 10_000
        await wait_for_async(lambda: content(engine, "a"), b"")
        info = await engine.info("a")
        assert info.first == info.tail == 8
        await engine.execute(append(engine, "a", b"04"))
        assert await content(engine, "a") == b"04"
        clock.ms += 10_001
        await wait_for_async(lambda: content(engine, "a"), b"")

    with_engine(body, limits=FAST, clock=clock)


def test_messages_of_a_json_stream_are_counted_and_records_stay_whole() -> None:
    async def body(engine: Engine) -> None:
        command = Create(path="a", now_ms=engine.now_ms(), content_type="application/json", body=b"[1,2,3]")
        await engine.execute(command)
        for body in (b"[4,5]", b"6", b"[7,8,9]"):
            await engine.execute(Append("a", engine.now_ms(), body, "application/json"))
        await engine.retain("a", (("messages", 5),))  # counts those that are there
        await wait_for_async(lambda: content(engine, "a"), b"4,5,6,7,8,9,")
        await engine.execute(Append("a", engine.now_ms(), b"[10,11]", "application/json"))
        await wait_for_async(lambda: content(engine, "a"), b"7,8,9,10,11,")
        reply = await engine.retain("a", (("messages", None),))
        assert reply.retention is None
        await engine.execute(Append("a", engine.now_ms(), b"[12,13,14,15]", "application/json"))
        await engine.execute(create(engine, "later", retention=Retention(bytes=1)))
        for body in (b"old", b"new"):
            await engine.execute(append(engine, "later", body))
        await wait_for_async(lambda: content(engine, "later"), b"new")  # a sweep has passed
        assert (await content(engine, "a")).startswith(b"7,")

    with_engine(body, limits=FAST, run=asyncio.run)


@pytest.mark.parametrize("retention", [Retention(bytes=6), Retention(messages=3)])
def test_a_stream_is_trimmed_while_it_is_appended_to(retention: Retention) -> None:
    clock = ManualClock()
    sizes: list[int] = []

    async def body(engine: Engine) -> None:
        await fill(engine, 1, retention)
        for n in range(200):
            clock.ms += 20
            await engine.execute(append(engine, "a", b"%02d" % (n % 100)))
            await asyncio.sleep(0.02)
            sizes.append(len(await content(engine, "a")))

    with_engine(body, clock=clock, limits=FAST)
    assert max(sizes) < 60


def test_messages_are_counted_in_the_stream_whose_retention_is_changed() -> None:
    """The messages of a stream are counted before its retention is changed, and it may be created again meanwhile."""

    async def body(engine: Engine) -> None:
        await fill(engine, 100)
        count = engine._retainer._count
        replaced: list[int] = []

        async def replace_after(stream: LoadedStream, wanted: int) -> Counted:
            counted = await count(stream, wanted)
            if not replaced:
                replaced.append(stream.id)
                await engine.execute(Delete("a", engine.now_ms()))
                await fill(engine, 8)
            return counted

        engine._retainer._count = replace_after  # type: ignore[method-assign]
        reply = await engine.retain("a", (("messages", 5),))
        assert reply.retention == Retention(messages=5)
        assert await content(engine, "a") == b"0304050607"

    with_engine(body)


def test_marks_are_bounded_and_never_keep_too_little() -> None:
    for kept in (1, 5, 100, 1_000, 10_000):
        counted = Counted()
        for position in range(20_000):
            counted = counted.add(position, 1, kept).after(counted.excess(kept))
            assert len(counted.marks) <= 3 * 64
            left = position + 1 - counted.excess(kept)
            assert min(kept, position + 1) <= left <= max(position + 1 if position < kept else 0, kept + kept // 64 + 1)


@pytest.mark.parametrize("target", ["offset", "time", "tail"])
def test_a_trim_by_hand_can_be_repeated(target: str) -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 5)
        clock.ms += 1_000
        at_ms = clock.ms
        await engine.execute(append(engine, "a", b"05"))
        trims: dict[str, Callable[[], object]] = {
            "offset": lambda: engine.trim("a", before=offsets[2]),
            "time": lambda: engine.trim("a", at_ms=at_ms),
            "tail": lambda: engine.trim("a"),
        }
        left = {"offset": b"030405", "time": b"05", "tail": b""}[target]
        for _ in range(2):
            reply = await trims[target]()  # type: ignore[misc]
            assert isinstance(reply, Reply)
            assert reply.first is not None
            assert reply.first.position == 12 - len(left)
            assert await content(engine, "a") == left
        if target == "offset":
            with pytest.raises(InvalidOffsetError):
                await engine.trim("a", before=Offset(offsets[0].id, 9))  # inside a record
        with pytest.raises(InvalidOffsetError):
            await engine.trim("a", before=Offset(offsets[0].id, 99))

    with_engine(body, clock=clock)


def test_a_live_reader_that_is_behind_the_beginning_is_refused() -> None:
    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 5)
        await engine.trim("a", before=offsets[3])
        with pytest.raises(OffsetTrimmedError):
            await engine.read_more(ReadMore(offsets[0].id, 2))

    with_engine(body)


def test_a_fork_begins_where_its_source_began_and_keeps_its_bytes() -> None:
    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 6)
        await engine.trim("a", before=offsets[1])
        with pytest.raises(OffsetTrimmedError):
            await engine.execute(create(engine, "b", fork=ForkRequest("a", offsets[0])))
        await engine.execute(create(engine, "b", fork=ForkRequest("a", offsets[3])))
        await engine.trim("a")
        assert await content(engine, "b") == b"0203"
        await engine.execute(append(engine, "b", b"xx"))
        assert (await engine.info("b")).first == 4
        await engine.trim("b", before=offsets[2])
        assert await content(engine, "b") == b"03xx"
        await engine.trim("b")
        assert await content(engine, "b") == b""
        assert (await engine.read(Read("b", BEGINNING))).start == 10

    with_engine(body)


def test_rows_of_a_trimmed_table() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "t", kind=ContentKind.ROWS))
        for n in range(10):
            await engine.execute(append(engine, "t", b"+\tk%d\tv\n" % n))
        reply = await engine.trim("t", seqno=5)
        assert reply.first_seqno == 5
        for since_id in (0, 4, -100):
            row = await engine.find_row(FindRow("t", since_id))
            assert (row.since_id, row.start.position) == (4, row.table.first)
        assert (await engine.find_row(FindRow("t", 6))).since_id == 6
        with pytest.raises(OffsetTrimmedError) as error:
            await engine.find_row(FindRow("t", 3))
        assert error.value.first_seqno == 5
        await engine.retain("t", (("messages", 2),))
        assert (await engine.find_row(FindRow("t", 0))).since_id == 8
        await engine.trim("t")
        assert (await engine.find_row(FindRow("t", 0))).since_id == 10
        await engine.execute(append(engine, "t", b"+\tlast\tv\n"))
        assert (await engine.info("t")).last_seqno == 11

    with_engine(body, run=asyncio.run)


def test_trimmed_bytes_do_not_count_for_quotas() -> None:
    usage = Usage(Prefixes([PrefixQuota("a", bytes_max=100)]))

    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 10)
        quota = usage.prefixes.by_prefix["a"]
        assert usage.of(quota).bytes == 20
        await engine.trim("a", before=offsets[6])
        assert usage.of(quota).bytes == 6

    with_engine(body, usage=usage)


def test_a_create_compares_the_retention_only_if_there_is_one() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", retention=Retention(bytes=5)))
        assert (await engine.execute(create(engine, "a"))).existed
        assert (await engine.execute(create(engine, "a", retention=Retention(bytes=5)))).existed
        with pytest.raises(Exception, match="different retention"):
            await engine.execute(create(engine, "a", retention=Retention(bytes=6)))

    with_engine(body)


def test_what_was_trimmed_is_counted() -> None:
    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 10, Retention(bytes=1_000))
        assert engine.report().streams_retained == 1
        for _ in range(2):
            await engine.trim("a", before=offsets[2])
        await engine.retain("a", (("bytes", 4),))
        await engine.retain("a", (("bytes", 2),))
        trims = engine.report().trims
        assert (trims.counts[TrimCause.REQUEST], trims.counts[TrimCause.RETENTION], trims.bytes) == (1, 2, 18)
        await engine.retain("a", (("bytes", None),))
        assert engine.report().streams_retained == 0
        await engine.retain("a", (("bytes", 5),))
        await engine.execute(Delete("a", engine.now_ms()))
        assert engine.report().streams_retained == 0

    with_engine(body, run=asyncio.run)


def test_a_wall_clock_that_is_set_forward_trims_nothing_and_one_that_is_set_back_delays_nothing() -> None:
    at_s, wall_s = 1_000.0, 50_000.0
    clock = SteadyClock(elapsed=lambda: at_s, wall=lambda: wall_s, boot=lambda: 7)

    async def body(engine: Engine) -> None:
        nonlocal at_s, wall_s
        await fill(engine, 3, Retention(seconds=60))
        for jump_s in (5.0, 86_400.0, -200_000.0):
            wall_s += jump_s
            at_s += 2
            wall_s += 2
            await asyncio.sleep(1)
            assert await content(engine, "a") == b"000102"
        at_s += 57  # slewed by at most 1 %
        wall_s += 57
        await wait_for_async(lambda: content(engine, "a"), b"")

    with_engine(body, limits=FAST, clock=clock)


def test_what_became_too_old_while_the_server_was_down_has_a_grace_period() -> None:
    """Also if another limit, or a request, trims the stream meanwhile."""
    clock = ManualClock()
    store = KeptStore()

    async def before(engine: Engine) -> None:
        await fill(engine, 5, Retention(seconds=60, bytes=6))

    async def after(engine: Engine) -> None:
        assert await content(engine, "a") == b"0001020304"  # the sweep comes once a second
        clock.ms += 1
        await engine.execute(append(engine, "a", b"05"))
        await wait_for_async(lambda: content(engine, "a"), b"030405")
        await asyncio.sleep(1)
        await engine.retain("a", (("bytes", 4),))
        assert await content(engine, "a") == b"0405"
        clock.ms += 59_000
        await asyncio.sleep(1)
        assert await content(engine, "a") == b"0405"
        clock.ms += 1_000
        await wait_for_async(lambda: content(engine, "a"), b"05")
        clock.ms += 1
        await wait_for_async(lambda: content(engine, "a"), b"")

    with_engine(before, store, limits=Limits(expiry_sweep_s=60, expiry_grace_s=0.01), clock=clock)
    clock.ms += 86_400_000
    with_engine(after, store, limits=Limits(expiry_sweep_s=0.1, expiry_grace_s=60), clock=clock)


def test_an_age_that_is_asked_for_in_the_grace_period_holds_at_once() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await fill(engine, 2)
        clock.ms += 10_000
        await engine.execute(append(engine, "a", b"02"))
        await engine.retain("a", (("seconds", 5),))
        assert await content(engine, "a") == b"02"

    with_engine(body, limits=Limits(expiry_grace_s=600), clock=clock)


class KeptStore(MemoryStore):
    """A store that is opened again with its content."""

    async def close(self) -> None:
        """Keep everything."""


def test_a_repeated_create_of_a_fork_at_the_beginning_of_a_trimmed_source() -> None:
    async def body(engine: Engine) -> None:
        offsets = await fill(engine, 6)
        await engine.trim("a", before=offsets[1])
        for path, offset in (("b", BEGINNING), ("c", offsets[3])):
            made = [await engine.execute(create(engine, path, fork=ForkRequest("a", offset))) for _ in range(2)]
            assert [reply.existed for reply in made] == [False, True]
        with pytest.raises(ConfigurationError):
            await engine.execute(create(engine, "c", fork=ForkRequest("a", BEGINNING)))
        assert await content(engine, "b") == b""
        assert await content(engine, "c") == b"0203"

    with_engine(body)
