"""Streams whose front is a snapshot: what readers, forks, rows and trims make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine import Engine
from headwater.engine.follower import Pulled
from headwater.engine.messages import FindRecords, FindRow, FindSplits, Read, ReadMore
from headwater.errors import (
    ConflictError,
    InvalidForkError,
    InvalidOffsetError,
    OffsetGoneError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import COMPACT_GRACE_S, SNAPSHOT_PREFIX, Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, SNAPSHOTS_FIRST, Offset
from headwater.log.quotas import Prefixes, PrefixQuota, Usage
from headwater.log.retention import Retention
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece
from tests.unit.engine.snapshots import compact, offsets_of
from tests.unit.engine.test_engine import ManualClock, append, create, with_engine
from tests.waiting import wait_for_async, wait_until_async

FAST = Limits(expiry_sweep_s=0.1, expiry_grace_s=0)


class Today(ManualClock):
    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_790_000_000_000

    def pass_grace(self) -> None:
        self.ms += (COMPACT_GRACE_S + 1) * 1000


async def all_of(engine: Engine, path: str, offset: Offset = BEGINNING, until: Offset | None = None) -> bytes:
    """Everything from an offset on, read in small pieces."""
    data = b""
    while True:
        reply = await engine.read(Read(path, offset, until, bytes_max=4))
        data += reply.data
        if not reply.data:
            assert reply.at_tail or until is not None
            return data
        offset = reply.stream.offset(reply.next)


async def filled(engine: Engine, count: int = 10, **more: object) -> list[Offset]:
    """A stream with records of two bytes. Returns the offset after each."""
    await engine.execute(create(engine, "a", **more))
    replies = [await engine.execute(append(engine, "a", b"%02d" % n)) for n in range(count)]
    return [reply.tail for reply in replies if reply.tail is not None]


def test_a_new_reader_gets_the_snapshot_and_one_that_is_there_what_it_replaces() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await compact(engine, "a", [b"ab", b"cd", b"e"], 12)
        info = await engine.info("a")
        assert (info.begin, info.first, info.tail) == (SNAPSHOTS_FIRST, 0, 20)
        assert await all_of(engine, "a") == b"abcde06070809"
        inside = await offsets_of(engine, "a")
        assert inside == sorted(inside)
        [busy] = [stream for stream in (await engine.busiest(10)).streams if stream.path == "a"]
        assert busy.first == info.first_offset == inside[0]
        expected = [b"abcde06070809", b"cde06070809", b"e06070809", b"06070809", b"070809", b"0809", b"09", b""]
        assert [await all_of(engine, "a", offset) for offset in inside] == expected
        for number, offset in enumerate(offsets):
            assert await all_of(engine, "a", offset) == b"00010203040506070809"[2 * number + 2 :]
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 12))
        assert [await all_of(engine, "a", offset) for offset in inside] == expected
        for number, offset in enumerate(offsets):
            if number < 5:
                with pytest.raises(OffsetTrimmedError) as error:
                    await all_of(engine, "a", offset)
                assert Offset(*(error.value.first or ())) == inside[0]
            else:
                assert await all_of(engine, "a", offset) == b"00010203040506070809"[2 * number + 2 :]

    with_engine(body, clock=clock, limits=FAST)


async def _first_is(engine: Engine, first: int) -> bool:
    return (await engine.info("a")).first == first


def test_a_reader_of_an_old_snapshot_finishes_until_what_follows_it_is_trimmed() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        await filled(engine)
        await compact(engine, "a", [b"ab", b"cd"], 8)
        old = (await offsets_of(engine, "a"))[1]
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 8))
        await compact(engine, "a", [b"x", b"y"], 16)
        assert await all_of(engine, "a") == b"xy0809"
        assert await all_of(engine, "a", old) == b"cd040506070809"
        new = await offsets_of(engine, "a")
        assert old < new[0] < new[-1]
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 16))
        with pytest.raises(OffsetTrimmedError) as error:
            await all_of(engine, "a", old)
        assert Offset(*(error.value.first or ())) == new[0]
        assert [await all_of(engine, "a", offset) for offset in new] == [b"xy0809", b"y0809", b"0809", b"09", b""]

    with_engine(body, clock=clock, limits=FAST)


def test_a_follower_goes_from_the_snapshot_to_the_tail_and_sees_no_compaction() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine)
        info = await engine.info("a")
        live = Pulled(engine, "view", info, info.tail)
        live.follower.open()
        await compact(engine, "a", [b"ab", b"cd"], 20)
        info = await engine.info("a")
        new = Pulled(engine, "view", info, info.begin)
        new.follower.open()
        read = [await new.next(), await new.next()]
        assert [piece.data for piece in read if piece] == [b"ab", b"cd"]
        assert read[1] is not None
        assert (read[1].next, read[1].offset, read[1].at_tail) == (20, info.offset(20), True)
        waiting = [asyncio.ensure_future(one.next()) for one in (live, new)]
        await asyncio.sleep(0)
        await engine.execute(append(engine, "a", b"10"))
        for piece in await asyncio.gather(*waiting):
            assert piece is not None
            assert (piece.data, piece.start, piece.next) == (b"10", 20, 22)
        for one in (live, new):
            one.follower.close()

    with_engine(body, clock=Today())


def test_ranges_records_and_splits_cross_from_the_snapshot_to_the_tail() -> None:
    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await compact(engine, "a", [b"ab", b"cd", b"ef"], 12, through_ms=engine.now_ms())
        inside = await offsets_of(engine, "a")
        reply = await engine.records(FindRecords("a", limit=10))
        assert [record.position for record in reply.records][2:] == [12, 14, 16, 18, 20]
        parts = await engine.splits(FindSplits("a", parts=7))
        assert [parts.stream.offset(place) for place in parts.splits] == inside[1:-1]
        parts = await engine.splits(FindSplits("a", step_bytes=4, limit=10))
        assert [parts.stream.offset(place) for place in parts.splits] == [inside[2], inside[4], inside[6]]
        assert await all_of(engine, "a", inside[1], inside[4]) == b"cdef06"
        assert await all_of(engine, "a", inside[1], inside[2]) == b"cd"
        assert await all_of(engine, "a", BEGINNING, offsets[3]) == b"00010203"  # before the snapshot ends
        assert await all_of(engine, "a", BEGINNING, inside[1]) == b"ab"
        assert await all_of(engine, "a", BEGINNING, offsets[6]) == b"abcdef06"
        with pytest.raises(InvalidOffsetError, match="begins in a snapshot"):
            await engine.read(Read("a", inside[0], offsets[3]))
        with pytest.raises(InvalidOffsetError, match="inside a record"):
            await engine.read(Read("a", Offset(inside[0].id, 1)))
        with pytest.raises((InvalidOffsetError, OffsetGoneError)):
            await engine.read(Read("a", Offset(inside[0].id, 6)))

    with_engine(body, clock=Today())


def test_records_from_a_time_on_begin_with_the_snapshot_if_it_has_replaced_some() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        times = []
        for number in range(6):
            clock.ms += 1_000
            times.append(clock.ms)
            await engine.execute(append(engine, "a", b"%02d" % number))
        await compact(engine, "a", [b"ab"], 6, through_ms=times[2])

        async def start(at_ms: int) -> int:
            return (await engine.records(FindRecords("a", at_ms=at_ms, limit=9))).start

        assert [await start(at_ms) for at_ms in times] == [SNAPSHOTS_FIRST, 2, 4, 6, 8, 10]
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 6))
        assert [await start(at_ms) for at_ms in times] == [SNAPSHOTS_FIRST] * 3 + [6, 8, 10]
        reply = await engine.records(FindRecords("a", limit=9))
        assert [record.at_ms for record in reply.records] == times[2:]
        for at_ms in times[:3]:  # the snapshot has data of that time, so it stays
            await engine.trim("a", at_ms=at_ms)
            assert (await engine.info("a")).begin == SNAPSHOTS_FIRST
        await engine.trim("a", at_ms=times[3])
        assert (await engine.info("a")).begin == 6

    with_engine(body, clock=clock, limits=FAST)


@pytest.mark.parametrize("position", [12, 14, 20])
def test_a_trim_by_hand_at_the_end_of_a_snapshot_or_after_it_drops_it(position: int) -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await compact(engine, "a", [b"ab", b"cd"], 12)
        inside = await offsets_of(engine, "a")
        for before in (offsets[2], inside[1]):  # what is before it stays hidden, and the snapshot stays
            await engine.trim("a", before=before)
            assert (await engine.info("a")).begin == SNAPSHOTS_FIRST
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 12))
        for _ in range(2):
            reply = await engine.trim("a", before=offsets[position // 2 - 1])
            assert reply.first == offsets[position // 2 - 1]
        assert await all_of(engine, "a") == b"00010203040506070809"[position:]
        assert (await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states == []
        with pytest.raises(OffsetTrimmedError) as error:
            await all_of(engine, "a", inside[1])
        assert Offset(*(error.value.first or ())) == offsets[position // 2 - 1]

    with_engine(body, clock=clock, limits=FAST)


def test_nothing_begins_where_what_leads_to_it_was_trimmed() -> None:
    """The records that are left of what a snapshot replaces are no state, but readers that are there go on."""

    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await compact(engine, "a", [b"ab"], 8)
        await compact(engine, "a", [b"xy"], 16)
        assert await all_of(engine, "a", until=offsets[5]) == b"ab0405"
        await engine.execute(create(engine, "before", fork=ForkRequest("a", offsets[8])))
        await engine.trim("a", before=offsets[4])
        for until in (offsets[4], offsets[6]):
            with pytest.raises(OffsetTrimmedError, match="what leads to it was trimmed") as error:
                await engine.read(Read("a", BEGINNING, until))
            assert Offset(*(error.value.first or ())) == (await engine.info("a")).first_offset
            with pytest.raises(OffsetTrimmedError):
                await engine.records(FindRecords("a", BEGINNING, until=until))
            with pytest.raises(OffsetTrimmedError):
                await engine.execute(create(engine, "no", fork=ForkRequest("a", until)))
        assert await all_of(engine, "a", offsets[5]) == b"06070809"
        assert await all_of(engine, "a", offsets[4], offsets[6]) == b"0506"
        assert await all_of(engine, "a", until=offsets[7]) == b"xy"
        assert await all_of(engine, "a", until=offsets[8]) == b"xy08"
        for name in ("before", "after"):
            if name == "after":
                await engine.execute(create(engine, name, fork=ForkRequest("a", None)))
            with pytest.raises(OffsetTrimmedError):  # the fork has the bytes and the later snapshot only
                await engine.read(Read(name, BEGINNING, offsets[6]))
        assert await all_of(engine, "before") == b"xy08"
        await engine.trim("a", before=offsets[7])
        assert await all_of(engine, "a") == await all_of(engine, "a", until=offsets[9]) == b"0809"

    with_engine(body, clock=Today(), limits=FAST)


def test_what_follows_a_trim_is_compacted_and_can_still_be_read_from_its_beginning() -> None:
    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await engine.trim("a", before=offsets[2])
        await compact(engine, "a", [b"xy"], 16)
        assert await all_of(engine, "a", until=offsets[5]) == b"030405"

    with_engine(body, clock=Today(), limits=FAST)


def test_forks_keep_what_they_read_before() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        offsets = await filled(engine)
        await compact(engine, "a", [b"ab", b"cd"], 8)
        inside = await offsets_of(engine, "a")
        forks = {}
        for name, offset in (("old", offsets[2]), ("at", offsets[3]), ("after", offsets[6]), ("tail", None)):
            await engine.execute(create(engine, name, fork=ForkRequest("a", offset)))
            await engine.execute(append(engine, name, b"!"))
            forks[name] = await all_of(engine, name)
        await engine.execute(create(engine, "none", fork=ForkRequest("a", BEGINNING)))
        await engine.execute(create(engine, "again", fork=ForkRequest("after", None)))
        forks |= {"none": b"", "again": b"abcd040506!"}
        assert forks == {
            "old": b"000102!",
            "at": b"abcd!",
            "after": b"abcd040506!",
            "tail": b"abcd040506070809!",
            "none": b"",
            "again": b"abcd040506!",
        }
        with pytest.raises(InvalidForkError, match="inside a snapshot"):
            await engine.execute(create(engine, "no", fork=ForkRequest("a", inside[1])))
        with pytest.raises(InvalidForkError, match="inside a snapshot"):
            await engine.execute(create(engine, "no", fork=ForkRequest("a", inside[0], 1)))
        assert await all_of(engine, "after", inside[1]) == b"cd040506!"
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 8))
        await compact(engine, "a", [b"x"], 20)
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 20))
        assert {name: await all_of(engine, name) for name in forks} == forks
        await engine.execute(Delete("a", clock.ms))
        assert {name: await all_of(engine, name) for name in forks} == forks
        assert len((await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states) == 1
        for name in ("at", "tail", "after", "again", "none", "old"):
            assert await all_of(engine, name) == forks[name]
            await engine.execute(Delete(name, clock.ms))
        assert (await engine._store.page("", "", 10)).states == []
        assert engine.report().streams == 0

    with_engine(body, clock=clock, limits=FAST)


def test_a_fork_has_a_snapshot_of_its_own() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        await filled(engine)
        await compact(engine, "a", [b"ab"], 8)
        await engine.execute(create(engine, "b", fork=ForkRequest("a", None)))
        await engine.execute(append(engine, "b", b"10"))
        await compact(engine, "b", [b"xy"], 22)
        assert await all_of(engine, "b") == b"xy"
        assert await all_of(engine, "a") == b"ab040506070809"
        inside = await offsets_of(engine, "b")
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 8))
        assert await all_of(engine, "b", inside[0]) == b"xy"
        await engine.execute(Delete("b", clock.ms))
        assert await all_of(engine, "a") == b"ab040506070809"

    with_engine(body, clock=clock, limits=FAST)


def test_a_stream_that_is_made_again_does_not_have_the_snapshots_of_the_one_before() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine)
        await compact(engine, "a", [b"ab", b"cd"], 8)
        inside = await offsets_of(engine, "a")
        await engine.execute(Delete("a", engine.now_ms()))
        assert (await engine._store.page("", "", 10)).states == []
        await filled(engine)
        await compact(engine, "a", [b"ef", b"gh"], 8)
        for offset in inside:
            with pytest.raises(OffsetGoneError):
                await engine.read(Read("a", offset))

    with_engine(body, clock=Today())


def test_a_compaction_that_does_not_fit_any_more_is_refused() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine)
        for position in (0, 22):
            with pytest.raises(ConflictError, match="snapshot up to"):
                await compact(engine, "a", [b"ab"], position)
        with pytest.raises(ConflictError, match="empty"):
            await compact(engine, "a", [], 8)
        await compact(engine, "a", [b"ab"], 8)
        with pytest.raises(ConflictError, match="another snapshot"):
            await compact(engine, "a", [b"ab"], 10, newest=0)
        with pytest.raises(ConflictError, match="after 8"):
            await compact(engine, "a", [b"ab"], 8)
        stream_id = (await engine.info("a")).id
        await engine.execute(Delete("a", engine.now_ms()))
        with pytest.raises(StreamNotFoundError):
            await compact_nothing(engine)
        await filled(engine)
        with pytest.raises(StreamGoneError, match="another one was created"):
            await compact(engine, "a", [b"ab"], 8, stream_id=stream_id)

    async def compact_nothing(engine: Engine) -> None:
        await compact(engine, "a", [b"ab"], 8)

    with_engine(body, clock=Today())


def test_a_stream_whose_id_does_not_come_from_the_clock_cannot_be_compacted() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine)
        with pytest.raises(ConflictError, match="copy it to a new stream"):
            await compact(engine, "a", [b"ab"], 8)

    with_engine(body, clock=ManualClock())


def test_snapshots_are_hidden_and_count_only_their_bytes() -> None:
    clock = Today()
    usage = Usage(Prefixes([PrefixQuota("a", streams_max=1, bytes_max=21), PrefixQuota("", streams_max=9)]))

    async def body(engine: Engine) -> None:
        await filled(engine)
        await compact(engine, "a", [b"abc"], 16)
        quota = usage.prefixes.by_prefix["a"]
        assert (usage.of(quota).streams, usage.of(quota).bytes) == (1, 23)
        assert [stream.path for stream in (await engine.page("", "", 10)).streams] == ["a"]
        hidden = (await engine._store.page(SNAPSHOT_PREFIX, "", 10)).states[0].path
        for command in (Delete(hidden, clock.ms), append(engine, hidden, b"x")):
            with pytest.raises(StreamGoneError):
                await engine.execute(command)
        clock.pass_grace()
        await wait_until_async(lambda: _first_is(engine, 16))
        assert usage.of(quota).bytes == 7
        await engine.execute(Delete("a", clock.ms))
        assert (usage.of(quota).streams, usage.of(quota).bytes) == (0, 0)

    with_engine(body, clock=clock, limits=FAST, usage=usage)


def test_what_was_replaced_stays_as_long_as_the_stream_says() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        kept = Retention(compact=True, compact_after_s=1_000)
        await engine.execute(Create(path="a", now_ms=clock.ms, content_type="application/json", retention=kept))
        for number in range(10, 20):
            await engine.execute(Append("a", clock.ms, b"%d" % number, "application/json"))
        await compact(engine, "a", [b"1"], 9)
        clock.ms += 990_000
        await asyncio.sleep(1)
        assert await _first_is(engine, 0)
        clock.ms += 10_001
        await wait_until_async(lambda: _first_is(engine, 9))
        assert await all_of(engine, "a") == b"1,13,14,15,16,17,18,19,"

    with_engine(body, clock=clock, limits=FAST)


def test_retention_beyond_a_snapshot_drops_it() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        await filled(engine, retention=Retention(bytes=6))
        await wait_for_async(lambda: all_of(engine, "a"), b"070809")
        await compact(engine, "a", [b"ab"], 18)
        assert await all_of(engine, "a") == b"ab09"
        for number in range(10, 13):
            await engine.execute(append(engine, "a", b"%02d" % number))
        await wait_for_async(lambda: all_of(engine, "a"), b"101112")

    with_engine(body, clock=clock, limits=FAST)


# Tables


async def table(engine: Engine, count: int = 40) -> None:
    """A table whose rows change keys a to d by turns."""
    await engine.execute(
        Create(path="\x01t", now_ms=engine.now_ms(), content_type="text/sequence", kind=ContentKind.ROWS)
    )
    for number in range(count):
        body = b"+\t%c\t%d" % (b"abcd"[number % 4], number)
        await engine.execute(Append("\x01t", engine.now_ms(), body, "text/sequence"))


def test_rows_are_found_in_the_snapshot_and_after_it() -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        await table(engine)
        whole = await all_of(engine, "\x01t")
        rows = whole.splitlines(keepends=True)
        position = sum(map(len, rows[:30]))
        kept = [rows[24], rows[27], rows[29]]  # SeqNos 25, 28 and 30; the last deletion that is missing was row 10
        await compact(engine, "\x01t", [b"".join(kept[:2]), kept[2]], position, seqno=30, complete_since=10)

        async def after(since_id: int, until_id: int | None = None) -> bytes:
            reply = await engine.find_row(FindRow("\x01t", since_id, until_id))
            end = reply.table.tail if until_id is None else reply.end
            data, start = b"", reply.start
            position, skip = start.record, start.skip
            while position < end:
                read = await engine.read_more(ReadMore(reply.table.id, position, end, 100))
                data += read.data[skip:]
                position, skip = read.next, 0
            return data

        new = b"".join(kept + rows[30:])
        for trimmed in (False, True):
            assert await after(0) == new
            for since_id in range(1, 41):
                if not trimmed or since_id >= 30:
                    assert await after(since_id) == b"".join(rows[since_id:])
                elif since_id < 10:
                    with pytest.raises(OffsetTrimmedError) as error:
                        await after(since_id)
                    assert error.value.first_seqno == 11
                else:
                    left = [row for row in kept if int(row.split(b"\t")[0]) > since_id]
                    assert await after(since_id) == b"".join(left + rows[30:])
            for until_id in range(31, 41):
                assert await after(0, until_id) == b"".join(kept + rows[30:until_id])
            assert await after(0, 30) == b"".join(kept)
            assert await after(0, 28) == b"".join(kept[:2])
            assert await after(0, 26) == kept[0]
            assert await after(0, 5) == b""
            assert await after(-5) == b"".join(rows[-5:])
            assert await after(-12) == (b"".join(kept[1:] + rows[30:]) if trimmed else b"".join(rows[-12:]))
            assert await after(-1_000) == (new if trimmed else whole)
            info = await engine.info("\x01t")
            assert info.first_seqno == (11 if trimmed else 1)
            clock.pass_grace()
            await wait_until_async(lambda: _trimmed(engine))

    with_engine(body, clock=clock, limits=FAST)


async def _trimmed(engine: Engine) -> bool:
    return (await engine.info("\x01t")).trimmed_seqno == 30


class Overtaken(MemoryStore):
    """Something happens before the next read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Awaitable[object]] | None = None

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().read(stream_id, start, end, bytes_max)


async def evict(engine: Engine) -> None:
    for _ in range(2):  # the first call finds that it was used
        await engine._catalogue.evict(0, 0)
    assert len(engine._catalogue) == 0


def test_the_last_rows_are_found_although_their_snapshot_is_replaced_after_the_table_was_evicted() -> None:
    clock, store = Today(), Overtaken()

    async def body(engine: Engine) -> None:
        await table(engine)
        rows = (await all_of(engine, "\x01t")).splitlines(keepends=True)
        ends = [sum(map(len, rows[:count])) for count in range(41)]
        await compact(engine, "\x01t", [rows[28], rows[29]], ends[30], seqno=30)
        clock.pass_grace()
        await wait_until_async(lambda: _table_begins_at(engine, ends[30]))

        async def replace() -> None:
            await evict(engine)
            await compact(engine, "\x01t", [rows[30], rows[37]], ends[38], seqno=38)
            clock.pass_grace()
            await wait_until_async(lambda: _table_begins_at(engine, ends[38]))

        store.before = replace
        reply = await engine.find_row(FindRow("\x01t", -12))
        assert (reply.table.first, reply.start.position) == (ends[38], reply.table.begin)
        read = await engine.read_more(ReadMore(reply.table.id, reply.start.record, reply.table.tail, 1_000))
        assert read.data == rows[30] + rows[37]

    with_engine(body, store, clock=clock, limits=FAST)


async def _table_begins_at(engine: Engine, first: int) -> bool:
    return (await engine.info("\x01t")).first == first


@pytest.mark.parametrize("deleted", [False, True])
def test_a_read_of_a_stream_that_was_evicted_says_what_happened_to_it(deleted: bool) -> None:
    store = Overtaken()

    async def body(engine: Engine) -> None:
        offsets = await filled(engine)

        async def remove() -> None:
            await evict(engine)
            if deleted:
                await engine.execute(Delete("a", engine.now_ms()))
            else:
                await engine.trim("a", before=offsets[5])

        store.before = remove
        with pytest.raises(StreamNotFoundError if deleted else OffsetTrimmedError):
            await engine.read(Read("a", offsets[2]))

    with_engine(body, store, clock=Today())
