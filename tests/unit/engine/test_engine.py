from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headwater import limits as bounds
from headwater.elapsed import elapsed_s
from headwater.engine import Engine, committer
from headwater.engine.clock import SteadyClock
from headwater.engine.messages import Ended, FindRecords, FindSplits, Read, ReadMore, ReadReply, Reason, Slice
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    InvalidForkError,
    InvalidOffsetError,
    OutOfMemoryError,
    OverloadedError,
    StoppingError,
    StorageFullError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
    TailMovedError,
    TooManyStreamsError,
)
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, Expire, ForkRequest, Reply, WriteDocument, WriteDocuments
from headwater.log.moments import NEVER, Moment
from headwater.log.offsets import BEGINNING
from headwater.log.producers import ProducerTuple
from headwater.log.state import Document, StreamState
from headwater.store.contract import Commit, Done, NoMemoryError, RefusedError
from headwater.store.deadlines import MAX_ID, Deadline
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece
from tests import virtual_time
from tests.waiting import wait_until_async


class SlowStore(MemoryStore):
    """A store that completes a commit when `release` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Sequence[Commit], Done]] = []

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        self.held.append((batch, done))

    def release(self, error: BaseException | None = None) -> None:
        batch, done = self.held.pop(0)
        if error is not None:
            done(error)
        else:
            super().commit(batch, done)


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def moment(self) -> Moment:
        return Moment(self.ms, self.ms, self.ms, 1)


def create(engine: Engine, path: str, **more: object) -> Create:
    return Create(path=path, now_ms=engine.now_ms(), content_type="text/plain", **more)  # type: ignore[arg-type]


def append(engine: Engine, path: str, body: bytes, **more: object) -> Append:
    return Append(path, engine.now_ms(), body, "text/plain", **more)  # type: ignore[arg-type]


def with_engine(
    body: Callable[[Engine], Awaitable[None]],
    store: MemoryStore | None = None,
    run: Callable[[Coroutine[Any, Any, None]], None] = virtual_time.run,
    **more: object,
) -> None:
    """Run a test with an engine, in virtual time unless the test uses threads or sockets."""

    async def main() -> None:
        engine = Engine(store or MemoryStore(), **more)  # type: ignore[arg-type]
        await engine.start()
        try:
            await body(engine)
        finally:
            held = getattr(store, "held", [])
            stopping = asyncio.ensure_future(engine.stop())
            while not stopping.done():
                if held and isinstance(store, SlowStore):
                    store.release()
                await asyncio.sleep(0)
            await stopping

    run(main())


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_nothing_is_visible_before_it_is_durable() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a", body=b"one")))
        await turn()
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")
        store.release()
        await creating
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"two", close=True)))
        await turn()
        stream = await engine.info("a")
        assert (stream.tail, stream.closed) == (3, False)
        store.release()
        await appending
        stream = await engine.info("a")
        assert (stream.tail, stream.closed) == (6, True)
        deleting = asyncio.ensure_future(engine.execute(Delete("a", engine.now_ms())))
        await turn()
        assert await engine.info("a") == stream
        store.release()
        await deleting
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")

    with_engine(body, store)


def test_a_condition_is_decided_on_the_newest_state_and_replied_to_when_it_is_durable() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        tail = (await creating).tail
        assert tail is not None
        racing = [asyncio.ensure_future(engine.execute(append(engine, "a", b"12", ends=(tail,)))) for _ in range(5)]
        racing.append(asyncio.ensure_future(engine.execute(Delete("a", engine.now_ms(), ends=(tail,)))))
        await turn()
        assert not any(one.done() for one in racing)
        store.release()
        await turn()
        first, *others = await asyncio.gather(*racing, return_exceptions=True)
        assert isinstance(first, Reply)
        for other in others:
            assert isinstance(other, TailMovedError)
            assert other.tail == (tail.id, 2)
        assert (await engine.info("a")).tail == 2

    with_engine(body, store)


def test_a_stream_can_be_read_until_its_deletion_is_durable() -> None:
    """Also for readers by id, because a crash could undo the deletion."""
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "s", body=b"here")))
        await turn()
        store.release()
        await creating
        stream = await engine.info("s")
        deleting = asyncio.ensure_future(engine.execute(Delete("s", engine.now_ms())))
        await turn()
        reader = Reader()
        assert engine.follow(stream.id, reader).tail == 4
        assert (await engine.read_more(ReadMore(stream.id, 0))).data == b"here"
        store.release()
        await deleting
        assert reader.reason is Ended.DELETED
        with pytest.raises(StreamNotFoundError):
            await engine.read_more(ReadMore(stream.id, 0))

    with_engine(body, store)


def test_replies_that_depend_on_a_pending_record_wait_for_it() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        again = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        assert not again.done()
        store.release()
        await turn()
        assert not creating.result().existed
        assert again.result().existed

        producer = ProducerTuple("p", 0, 0)
        first = asyncio.ensure_future(engine.execute(append(engine, "a", b"x", producer=producer, close=True)))
        await turn()
        duplicate = asyncio.ensure_future(engine.execute(append(engine, "a", b"x", producer=producer)))
        refused = asyncio.ensure_future(engine.execute(append(engine, "a", b"y")))
        await turn()
        assert not duplicate.done()
        assert not refused.done()
        store.release()
        await turn()
        assert first.done()
        assert duplicate.result().duplicate
        assert isinstance(refused.exception(), StreamClosedError)

    with_engine(body, store)


def test_waiting_appends_share_the_next_batch() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        await creating
        appends = [asyncio.ensure_future(engine.execute(append(engine, "a", b"x")))]
        await turn()
        appends += [asyncio.ensure_future(engine.execute(append(engine, "a", b"y"))) for _ in range(50)]
        await turn()
        assert [len(batch) for batch, _ in store.held] == [1]
        store.release()
        await turn()
        assert [len(batch) for batch, _ in store.held] == [50]
        store.release()
        replies = await asyncio.gather(*appends)
        assert [reply.tail and reply.tail.position for reply in replies] == list(range(1, 52))

    with_engine(body, store)


def test_writers_are_refused_when_the_store_does_not_keep_up() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        await creating
        held = [asyncio.ensure_future(engine.execute(append(engine, "a", b"x" * 60))) for _ in range(1)]
        await turn()
        more = [asyncio.ensure_future(engine.execute(append(engine, "a", b"x" * 60))) for _ in range(3)]
        await turn()
        assert [type(task.exception()) for task in more if task.done()] == [OverloadedError, OverloadedError]
        store.release()
        await asyncio.gather(*held)
        store.release()
        await more[0]

    with_engine(body, store, limits=Limits(commit_backlog_bytes=100))


def test_a_failed_commit_is_final() -> None:
    store = SlowStore()
    fatal: list[BaseException] = []

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release(OSError("disk on fire"))
        await turn()
        assert isinstance(creating.exception(), HeadwaterError)
        assert [str(error) for error in fatal] == ["disk on fire"]
        with pytest.raises(StoppingError):
            await engine.execute(create(engine, "b"))

    with_engine(body, store, fatal=fatal.append)


class Reader:
    kind = "test"

    def __init__(self) -> None:
        self.updates: list[Slice] = []
        self.reason: Reason | None = None

    def deliver(self, update: Slice) -> None:
        self.updates.append(update)

    def ended(self, reason: Reason) -> None:
        self.reason = reason


def test_live_readers_get_one_update_per_batch_and_the_end() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        stream = await engine.info("a")
        readers = [Reader(), Reader()]
        for reader in readers:
            assert engine.follow(stream.id, reader) == stream
        await asyncio.gather(*[engine.execute(append(engine, "a", bytes([n]))) for n in b"xyz"])
        assert [(u.start, u.next, u.data, u.closed) for u in readers[0].updates] == [(0, 3, b"xyz", False)]
        assert readers[0].updates[0] is readers[1].updates[0]
        await engine.execute(append(engine, "a", b"", close=True))
        assert readers[0].updates[-1].closed
        await engine.execute(Delete("a", engine.now_ms()))
        assert [reader.reason for reader in readers] == [Ended.DELETED, Ended.DELETED]
        with pytest.raises(StreamNotFoundError):
            engine.follow(stream.id, readers[0])

    with_engine(body)


def test_draining_ends_live_readers() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        reader = Reader()
        engine.follow((await engine.info("a")).id, reader)
        waiting = asyncio.ensure_future(engine.read(Read("a", BEGINNING, wait_s=60)))
        await turn()
        engine.drain()
        assert reader.reason is Ended.DRAINING
        assert (await asyncio.wait_for(waiting, 1)).data == b""
        with pytest.raises(StoppingError):
            engine.follow((await engine.info("a")).id, reader)

    with_engine(body)


def test_a_waiting_read_ends_with_data_close_deletion_or_timeout() -> None:
    async def wait(engine: Engine, wait_s: float) -> ReadReply:
        return await asyncio.wait_for(engine.read(Read("a", None, bytes_max=10, wait_s=wait_s)), 1)

    async def body(engine: Engine) -> None:
        for command, seen in (
            (append(engine, "a", b"x"), (b"x", False)),
            (append(engine, "a", b"", close=True), (b"", True)),
            (Delete("a", engine.now_ms()), None),
        ):
            await engine.execute(create(engine, "a"))
            waiting = asyncio.ensure_future(wait(engine, 60))
            await turn()
            assert not waiting.done()
            await engine.execute(command)
            if seen is None:
                with pytest.raises(StreamNotFoundError):
                    await waiting
            else:
                reply = await waiting
                assert (reply.data, reply.stream.closed) == seen
                await engine.execute(Delete("a", engine.now_ms()))
        await engine.execute(create(engine, "a"))
        assert (await wait(engine, 0.01)).data == b""

    with_engine(body)


def test_reads_cross_forks_and_stay_bounded() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"aaaa"))
        reply = await engine.execute(append(engine, "a", b"bbbb"))
        await engine.execute(create(engine, "f", fork=ForkRequest("a", reply.tail), body=b"cc"))
        await engine.execute(append(engine, "a", b"later"))
        fork = (await engine.info("f")).id

        async def read(start: int, bytes_max: int, until: int | None = None) -> tuple[bytes, int]:
            reply = await engine.read_more(ReadMore(fork, start, until, bytes_max))
            return reply.data, reply.next

        assert await read(0, 1000) == (b"aaaabbbbcc", 10)
        assert await read(0, 5) == (b"aaaa", 4)
        assert await read(4, 5) == (b"bbbb", 8)
        assert await read(4, 100, 9) == (b"bbbbc", 9)
        assert await read(10, 100) == (b"", 10)
        with pytest.raises(InvalidOffsetError):
            await read(3, 100)

    with_engine(body)


def test_the_parts_of_a_chain_of_forks_are_read_together_and_are_whole_records() -> None:
    reading: list[int] = []

    class Store(MemoryStore):
        """A store whose reads take turns of the loop."""

        async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
            reading[-1] += 1
            await asyncio.sleep(0)
            return await super().read(stream_id, start, end, bytes_max)

    async def body(engine: Engine) -> None:
        records = [bytes([97 + number]) * (number % 4 + 1) for number in range(12)]
        await engine.execute(create(engine, "f0", body=records[0]))
        for number, record in enumerate(records[1:], 1):
            await engine.execute(create(engine, f"f{number}", fork=ForkRequest(f"f{number - 1}"), body=record))
        last = (await engine.info("f11")).id
        ends = [sum(map(len, records[:number])) for number in range(len(records) + 1)]
        for bytes_max in range(1, 40):
            start, data = 0, b""
            while start < ends[-1]:
                reading.append(0)
                reply = await engine.read_more(ReadMore(last, start, None, bytes_max))
                most = max([end for end in ends if end - start <= bytes_max] + [ends[ends.index(start) + 1]])
                assert reply.next == most, (bytes_max, start)
                assert len(reply.data) == reply.next - start
                start, data = reply.next, data + reply.data
            assert data == b"".join(records)
        assert reading[-1] == len(records)  # all in one read

    with_engine(body, Store())


def test_records_have_the_times_of_their_appends_which_never_decrease() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        start = clock.ms
        await engine.execute(create(engine, "a", body=b"aa"))
        clock.ms += 1000
        await engine.execute(append(engine, "a", b"bbb"))
        clock.ms -= 5000
        await engine.execute(append(engine, "a", b"c"))
        await engine.execute(create(engine, "f", fork=ForkRequest("a"), body=b"d"))
        clock.ms += 6000
        await engine.execute(append(engine, "f", b"ee"))
        times = [(2, start), (5, start + 1000), (6, start + 1000), (7, start + 1000), (9, start + 2000)]
        reply = await engine.records(FindRecords("f", limit=10))
        assert list(reply.records) == times
        offset = reply.stream.offset(2)
        assert list((await engine.records(FindRecords("f", offset, limit=2))).records) == times[1:3]
        for at_ms, begins in ((0, 0), (start + 1, 2), (start + 1000, 2), (start + 1001, 7), (start + 2001, 9)):
            assert (await engine.records(FindRecords("f", at_ms=at_ms, limit=1))).start == begins
        with pytest.raises(InvalidOffsetError):
            await engine.records(FindRecords("f", reply.stream.offset(3), limit=1))

    with_engine(body, clock=clock)


def test_splits_fall_on_boundaries() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        for number in range(10):
            await engine.execute(append(engine, "a", b"x" * (number + 1)))
        ends = [number * (number + 1) // 2 for number in range(11)]
        splits = await engine.splits(FindSplits("a", parts=4, limit=100))
        assert set(splits.splits) < set(ends)
        assert len(splits.splits) == 3
        stepped = await engine.splits(FindSplits("a", step_bytes=7, limit=100))
        assert all(two - one <= 10 for one, two in itertools.pairwise((0, *stepped.splits, 55)))

    with_engine(body)


def test_documents_change_with_a_stream_and_are_seen_once_durable() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        await creating
        change = (WriteDocument("follow/a", b"7", 0),)
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"rows", documents=change)))
        await turn()
        again = asyncio.ensure_future(engine.execute(append(engine, "a", b"rows", documents=change)))
        await turn()
        assert await engine.document("follow/a") is None
        store.release()
        await turn()
        await appending
        assert isinstance(again.exception(), ConflictError)
        assert (await engine.info("a")).tail == 4
        assert await engine.document("follow/a") == Document("follow/a", b"7", 1)
        writing = asyncio.ensure_future(
            engine.execute(WriteDocuments((WriteDocument("x", b"1"), WriteDocument("follow/a", None, 1))))
        )
        await turn()
        store.release()
        await writing
        assert await engine.documents("", "", 10) == [Document("x", b"1", 1)]
        assert await engine.document("follow/a") is None

    with_engine(body, store)


def test_a_refused_batch_is_rolled_back_and_its_writers_get_an_error() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a", body=b"one")))
        await turn()
        store.release()
        await creating
        refused = [
            asyncio.ensure_future(engine.execute(append(engine, "a", b"two", documents=(WriteDocument("d", b""),)))),
            asyncio.ensure_future(engine.execute(create(engine, "b"))),
            asyncio.ensure_future(engine.execute(append(engine, "b", b"four"))),
        ]
        await turn()
        waiting = asyncio.ensure_future(engine.execute(create(engine, "c")))
        await turn()
        store.release(RefusedError("no room"))
        await turn()
        assert [type(task.exception()) for task in (*refused, waiting)] == [StorageFullError] * 4
        assert await engine.document("d") is None
        again = asyncio.ensure_future(engine.execute(append(engine, "a", b"three")))
        await turn()
        store.release()
        assert (await again).tail == (await engine.info("a")).offset(8)
        with pytest.raises(StreamNotFoundError):
            await engine.info("b")

    with_engine(body, store)


def test_a_batch_without_memory_is_refused_and_the_next_one_is_written() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        refused = asyncio.ensure_future(engine.execute(create(engine, "a", body=b"one")))
        await turn()
        store.release(NoMemoryError())
        await turn()
        assert type(refused.exception()) is OutOfMemoryError
        again = asyncio.ensure_future(engine.execute(create(engine, "a", body=b"one")))
        await turn()
        store.release()
        assert not (await again).existed

    with_engine(body, store)


class SlowLoads(SlowStore):
    """A store whose loads wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, path: str) -> StreamState | None:
        state = await super().load(path)
        await self.gate.wait()
        return state

    async def load_id(self, stream_id: int) -> StreamState | None:
        state = await super().load_id(stream_id)
        await self.gate.wait()
        return state


def test_a_load_that_began_before_a_deletion_does_not_restore_the_stream() -> None:
    store = SlowLoads()

    async def done(engine: Engine, command: Create | Delete) -> None:
        task = asyncio.ensure_future(engine.execute(command))
        await turn()
        store.release()
        await task

    async def body(engine: Engine) -> None:
        await done(engine, create(engine, "source"))
        await done(engine, create(engine, "fork", fork=ForkRequest("source")))
        await engine._catalogue.evict(0, 0)
        await engine._catalogue.evict(0, 0)
        store.gate.clear()
        deleting = asyncio.ensure_future(engine.execute(Delete("fork", engine.now_ms())))  # loads the source by id
        looking = asyncio.ensure_future(engine.info("source"))
        await turn()
        store.gate.set()
        await turn()
        store.release()
        await asyncio.gather(deleting, looking)
        await done(engine, Delete("source", engine.now_ms()))
        for path in ("source", "fork"):
            with pytest.raises(StreamNotFoundError):
                await engine.info(path)
        assert len(engine._catalogue) == 0

    with_engine(body, store)


def test_a_time_to_live_slides_with_reads_and_live_readers() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=10))
        for _ in range(3):
            clock.ms += 9_000
            await engine.read(Read("a"))
        clock.ms += 9_000
        stream = await engine.info("a")
        reader = Reader()
        engine.follow(stream.id, reader)
        clock.ms += 60_000
        await engine.info("a")
        engine.unfollow(stream.id, reader)
        clock.ms += 10_000
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")
        assert not (await engine.execute(create(engine, "a", ttl_s=10))).existed

    with_engine(body, clock=clock)


def test_expired_streams_are_deleted_and_their_readers_notified() -> None:
    clock = ManualClock()
    store = MemoryStore()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", expires_ms=clock.ms + 5_000))
        waiting = asyncio.ensure_future(engine.read(Read("a", wait_s=60)))
        await turn()
        clock.ms += 5_000
        with pytest.raises(StreamNotFoundError):
            await asyncio.wait_for(waiting, 5)
        assert await store.load("a") is None

    with_engine(body, store, clock=clock, limits=Limits(expiry_sweep_s=0.01))


def test_an_append_to_an_incarnation_does_not_reach_the_next_one() -> None:
    """The deletion and the new stream are not durable when the append is decided."""
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        tail = (await creating).tail
        assert tail is not None
        requests = []
        for command in (
            Delete("a", engine.now_ms()),
            create(engine, "a", body=b"other"),
            append(engine, "a", b"late", stream_id=tail.id),
        ):
            requests.append(asyncio.ensure_future(engine.execute(command)))
            await turn()
        assert not any(future.done() for future in requests)  # no reply before the states are durable
        while store.held:
            store.release()
            await turn()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(answers[2], StreamGoneError)
        assert (await engine.read(Read("a", bytes_max=100))).data == b"other"

    with_engine(body, store)


def test_concurrent_creates_of_one_path_agree() -> None:
    async def body(engine: Engine) -> None:
        answers = await asyncio.gather(
            *[engine.execute(create(engine, "a", ttl_s=ttl)) for ttl in (1, 1, 2)], return_exceptions=True
        )
        assert [isinstance(answer, Reply) and answer.existed for answer in answers[:2]] == [False, True]
        assert isinstance(answers[2], ConflictError)

    with_engine(body)


def test_the_steady_clock_does_not_jump_ahead() -> None:
    wall, elapsed = [1_000.0], [50.0]
    clock = SteadyClock(NEVER, lambda: elapsed[0], lambda: wall[0])
    assert clock.now_ms() == 1_000_000
    wall[0] += 3600
    elapsed[0] += 10
    assert 1_010_000 <= clock.now_ms() <= 1_010_100
    wall[0] = 1_000.0 + 5
    elapsed[0] += 10
    assert 1_020_000 - 200 <= clock.now_ms() <= 1_020_100  # the clock approaches the wall clock slowly


def test_a_wall_clock_that_is_set_back_does_not_set_back_the_time() -> None:
    wall, elapsed = [1_000_000_000.0], [50.0]
    clock = SteadyClock(NEVER, lambda: elapsed[0], lambda: wall[0])
    wall[0] -= 31 * 86_400
    elapsed[0] += 2
    assert 1_000_000_001_900 <= clock.now_ms() <= 1_000_000_002_000
    assert clock.moment().wall_ms == int(wall[0] * 1000)


LATEST = Moment(at_ms=5_000_000, wall_ms=9_000_000, up_ms=60_000, boot=7)


@pytest.mark.parametrize("wall_s", [0.0, 5_010.0, 40 * 86_400.0])
def test_after_a_restart_time_goes_on_by_what_has_elapsed_whatever_the_wall_clock_says(wall_s: float) -> None:
    clock = SteadyClock(LATEST, lambda: 70.0, lambda: wall_s, lambda: 7)
    assert clock.now_ms() == 5_010_000
    assert clock.moment() == Moment(5_010_000, int(wall_s * 1000), 70_000, 7)


@pytest.mark.parametrize(("wall_s", "now_ms"), [(4_000.0, 5_000_000), (6_000.0, 6_000_000)])
@pytest.mark.parametrize(("boot", "up_s"), [(8, 70.0), (0, 70.0), (7, 1.0)])
def test_after_a_reboot_time_is_the_wall_clock_but_not_before_the_journal(
    wall_s: float, now_ms: int, boot: int, up_s: float
) -> None:
    assert SteadyClock(LATEST, lambda: up_s, lambda: wall_s, lambda: boot).now_ms() == now_ms


def test_the_time_of_a_suspended_machine_counts() -> None:
    assert abs(elapsed_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1


def test_a_clock_that_is_ahead_at_the_start_deletes_nothing_at_once() -> None:
    clock, store = ManualClock(), MemoryStore()
    limits = Limits(expiry_sweep_s=0.01, expiry_grace_s=60)

    async def fill(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=10, body=b"precious"))

    async def wrong(engine: Engine) -> None:
        await asyncio.sleep(0.1)
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")
        clock.ms -= 3600_000  # the clock is corrected
        assert (await engine.info("a")).tail == 8
        clock.ms += 3600_000 + 61_000  # the deadline has passed

        async def is_deleted() -> bool:
            return await store.load("a") is None

        await wait_until_async(is_deleted)

    store.close = lambda: asyncio.sleep(0)  # type: ignore[method-assign]  # the store is used by the next engine
    with_engine(fill, store, clock=clock, limits=limits)
    clock.ms += 3600_000
    with_engine(wrong, store, clock=clock, limits=limits)


def test_live_readers_renew_a_stream_durably() -> None:
    clock, store = ManualClock(), MemoryStore()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=20))
        engine.follow((await engine.info("a")).id, Reader())
        for _ in range(17):
            clock.ms += 1_000
            await asyncio.sleep(0.03)
        state = await store.load("a")
        assert state is not None
        assert clock.ms - state.accessed_ms <= 2_000  # a crash loses at most a twentieth of the time-to-live

    with_engine(body, store, clock=clock, limits=Limits(expiry_sweep_s=0.01))


def test_a_list_has_a_stream_with_live_readers_that_was_not_renewed_yet() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=20))
        await engine.execute(create(engine, "b", ttl_s=20))
        engine.follow((await engine.info("a")).id, Reader())
        clock.ms += 30_000  # and the sweep, which renews it, comes later
        assert [stream.path for stream in (await engine.page("", "", 10)).streams] == ["a"]
        assert (await engine.info("a")).deadline_ms == clock.ms + 20_000

    with_engine(body, clock=clock, limits=Limits(expiry_sweep_s=3600))


def test_a_renewal_on_a_full_disk_is_stored_later() -> None:
    clock, store = ManualClock(), MemoryStore()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=20))
        await engine.execute(create(engine, "b"))
        clock.ms += 15_000
        store.full = "no room"
        await engine.read(Read("a"))
        await asyncio.sleep(0.05)  # neither stored nor evicted
        store.full = None
        await asyncio.sleep(0.05)
        clock.ms += 15_000
        assert (await engine.info("a")).tail == 0
        state = await store.load("a")
        assert state is not None
        assert state.accessed_ms == clock.ms - 15_000

    with_engine(body, store, clock=clock, limits=Limits(expiry_sweep_s=0.01, streams_loaded_max=0))


def test_soft_deleted_streams_are_evicted() -> None:
    async def body(engine: Engine) -> None:
        for number in range(10):
            await engine.execute(create(engine, f"s{number}", body=b"x"))
            await engine.execute(create(engine, f"f{number}", fork=ForkRequest(f"s{number}")))
            await engine.execute(Delete(f"s{number}", engine.now_ms()))
        await wait_until_async(lambda: len(engine._catalogue) <= 5)
        for number in range(10):
            with pytest.raises(StreamGoneError):
                await engine.info(f"s{number}")

    with_engine(body, limits=Limits(streams_loaded_max=5, expiry_sweep_s=0.01))


def test_a_chain_of_empty_forks_is_bounded() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "0"))
        for number in range(bounds.FORK_DEPTH_MAX):
            await engine.execute(create(engine, f"{number + 1}", fork=ForkRequest(f"{number}")))
        with pytest.raises(InvalidForkError, match="at most 128"):
            await engine.execute(create(engine, "more", fork=ForkRequest(f"{bounds.FORK_DEPTH_MAX}")))

    with_engine(body)


def test_renewed_streams_do_not_hide_expired_ones() -> None:
    clock, store = ManualClock(), MemoryStore()

    async def body(engine: Engine) -> None:
        for number in range(20):
            await engine.execute(create(engine, f"renewed{number}", ttl_s=10))
        await engine.execute(create(engine, "expired", ttl_s=11))
        clock.ms += 9_000
        for number in range(20):
            await engine.read(Read(f"renewed{number}"))
        await turn()
        clock.ms += 2_000
        paths: list[str] = []
        after: Deadline | None = (-1, MAX_ID)
        while after is not None:
            due, after = await store.due(after, clock.ms, 5)
            paths += due
        assert paths == ["expired"]

    with_engine(body, store, clock=clock)


def test_new_ids_are_larger_than_those_before_a_restore() -> None:
    clock = ManualClock()
    ids: list[int] = []

    async def body(engine: Engine) -> None:
        for number in range(50):
            await engine.execute(create(engine, f"s{number}"))
        ids.extend([(await engine.info(f"s{number}")).id for number in range(50)])

    with_engine(body, MemoryStore(), clock=clock)
    clock.ms += 1  # the restored store does not have the ids that were used
    with_engine(body, MemoryStore(), clock=clock)
    assert len(set(ids)) == 100
    assert ids == sorted(ids)


def test_a_fork_created_together_with_its_source_has_the_larger_id() -> None:
    async def body(engine: Engine) -> None:
        fork = create(engine, "f", fork=ForkRequest("a"))
        source = create(engine, "a", body=b"abc")
        first = asyncio.ensure_future(engine.execute(source))
        before = (await asyncio.gather(first, engine.execute(fork)))[1].tail
        after = (await engine.execute(append(engine, "f", b"x"))).tail
        assert before is not None
        assert after is not None
        assert after > before

    with_engine(body)


def test_requests_for_a_deleted_stream_leave_nothing_in_memory() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        await engine.execute(create(engine, "f", fork=ForkRequest("a")))
        await engine.execute(Delete("a", engine.now_ms()))
        errors = []
        for _ in range(3):
            with pytest.raises(StreamGoneError) as error:
                await engine.info("a")
            errors.append(error.value)
        assert len(set(map(id, errors))) == 3

    with_engine(body)


def test_looking_for_expired_streams_does_not_renew_them() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=100))
        clock.ms += 50_000
        await engine.execute(Expire("a", clock.ms))
        clock.ms += 50_000
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")

    with_engine(body, clock=clock)


def test_unused_streams_are_evicted_and_loaded_again() -> None:
    async def body(engine: Engine) -> None:
        for number in range(20):
            await engine.execute(create(engine, f"s{number}", body=b"data"))
        await wait_until_async(lambda: len(engine._catalogue) <= 5)
        for number in range(20):
            assert (await engine.execute(create(engine, f"s{number}"))).existed
            reply = await engine.execute(append(engine, f"s{number}", b"more"))
            assert reply.tail is not None
            assert reply.tail.position == 8

    with_engine(body, limits=Limits(streams_loaded_max=5, expiry_sweep_s=0.01))


def test_a_failing_callback_does_not_affect_other_replies() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await turn()
        store.release()
        await creating

        def broken(answer: object) -> None:
            raise RuntimeError("this client is trouble")

        answers: list[object] = []
        engine.submit(append(engine, "a", b"x"), broken)
        engine.submit(append(engine, "a", b"y"), answers.append)
        await turn()
        store.release()
        assert [type(answer) for answer in answers] == [Reply]

    with_engine(body, store)


def test_streams_that_are_not_durable_yet_count() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        tasks = [asyncio.ensure_future(engine.execute(create(engine, path))) for path in ("a", "b", "c")]
        await until_held(store)
        store.release()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Reply, Reply, TooManyStreamsError]

    with_engine(body, store, limits=Limits(streams_max=2))


def test_a_refused_batch_does_not_change_the_stream_count() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        first = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await until_held(store)
        store.release(RefusedError("no room"))
        with pytest.raises(StorageFullError):
            await first
        again = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await until_held(store)
        store.release()
        await again
        with pytest.raises(TooManyStreamsError):
            await engine.execute(create(engine, "b"))

    with_engine(body, store, limits=Limits(streams_max=1))


async def until_held(store: SlowStore) -> None:
    await wait_until_async(lambda: store.held, "a batch reached the store")


def test_a_slow_batch_limits_the_bytes_that_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now_s = SlowStore(), [1.0]
    monkeypatch.setattr(committer, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    part = b"x" * (bounds.COMMIT_BYTES_MIN // 4)

    async def body(engine: Engine) -> None:
        made = asyncio.ensure_future(engine.execute(create(engine, "a")))
        await until_held(store)
        store.release()
        await made
        first = asyncio.ensure_future(engine.execute(append(engine, "a", b"x")))
        await until_held(store)
        quick = [asyncio.ensure_future(engine.execute(append(engine, "a", part))) for _ in range(6)]
        await turn()
        now_s[0] += bounds.COMMIT_S * 1.5  # the first batch now counts as slow
        late = asyncio.ensure_future(engine.execute(append(engine, "a", part)))
        with pytest.raises(OverloadedError):
            await late
        store.release()
        await first
        await until_held(store)
        store.release()
        await asyncio.gather(*quick)

    with_engine(body, store)


def test_an_expired_stream_does_not_count_when_a_create_would_be_refused() -> None:
    clock, store = ManualClock(), MemoryStore()

    async def body(engine: Engine) -> None:
        for number in range(3):
            await engine.execute(create(engine, f"short{number}", ttl_s=5))
        await engine.execute(create(engine, "long", ttl_s=500))
        with pytest.raises(TooManyStreamsError):
            await engine.execute(create(engine, "new"))
        clock.ms += 6_000
        created = [engine.execute(create(engine, f"new{number}")) for number in range(3)]
        assert [type(reply) for reply in await asyncio.gather(*created)] == [Reply] * 3
        assert store.streams == 4
        with pytest.raises(TooManyStreamsError):
            await engine.execute(create(engine, "another"))
        assert (await engine.info("long")).path == "long"

    with_engine(body, store, clock=clock, limits=Limits(streams_max=4, expiry_sweep_s=3_600))


def test_streams_that_expire_together_are_deleted_in_one_sweep() -> None:
    clock, store = ManualClock(), MemoryStore()
    count = 3 * bounds.EXPIRE_STREAMS_MAX + 7

    async def body(engine: Engine) -> None:
        for number in range(count):
            await engine.execute(create(engine, f"s{number}", ttl_s=5))
        await engine.execute(create(engine, "renewed", ttl_s=5))
        clock.ms += 4_000
        await engine.read(Read("renewed"))
        clock.ms += 2_000
        await engine._housekeeping._expire_all()
        assert store.streams == 1
        assert (await engine.info("renewed")).path == "renewed"

    with_engine(body, store, clock=clock, limits=Limits(expiry_sweep_s=3_600))
