from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headwater.engine import Engine
from headwater.engine.clock import SteadyClock
from headwater.engine.tails import Update
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    InvalidOffsetError,
    OverloadedError,
    StoppingError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import Limits
from headwater.log.model import Append, Create, Delete, Expire, ForkRequest, Reply
from headwater.log.producers import ProducerTuple
from headwater.store.contract import Commit, Done
from headwater.store.memory import MemoryStore


class SlowStore(MemoryStore):
    """A store that makes a batch durable only when told to."""

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


def create(engine: Engine, path: str, **more: object) -> Create:
    return Create(path=path, stream_id=engine.new_id(), now_ms=engine.now_ms(), content_type="text/plain", **more)  # type: ignore[arg-type]


def append(engine: Engine, path: str, body: bytes, **more: object) -> Append:
    return Append(path, engine.now_ms(), body, "text/plain", **more)  # type: ignore[arg-type]


def with_engine(body: Callable[[Engine], Awaitable[None]], store: MemoryStore | None = None, **more: object) -> None:
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

    asyncio.run(main())


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_nothing_is_visible_before_it_is_durable() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a", body=b"one")))
        await turn()
        with pytest.raises(StreamNotFoundError):
            await engine.find("a", renew=True)
        store.release()
        await creating
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"two", close=True)))
        await turn()
        stream = await engine.find("a", renew=True)
        assert (stream.tail, stream.closed) == (3, False)
        store.release()
        await appending
        assert (stream.tail, stream.closed) == (6, True)
        deleting = asyncio.ensure_future(engine.execute(Delete("a", engine.now_ms())))
        await turn()
        assert await engine.find("a", renew=True) is stream
        store.release()
        await deleting
        with pytest.raises(StreamNotFoundError):
            await engine.find("a", renew=True)

    with_engine(body, store)


def test_answers_that_depend_on_a_record_under_way_wait_for_it() -> None:
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


def test_everything_that_waits_shares_the_next_batch() -> None:
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
        assert [int(reply.next_offset[17:]) for reply in replies] == list(range(1, 52))

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
    store, fatal = SlowStore(), []

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
    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.ended = False

    def deliver(self, update: Update) -> None:
        self.updates.append(update)

    def gone(self) -> None:
        self.ended = True


def test_live_readers_are_told_once_a_batch_and_of_the_end() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        stream = await engine.find("a", renew=True)
        readers = [Reader(), Reader()]
        for reader in readers:
            engine.subscribe(stream, reader)
        await asyncio.gather(*[engine.execute(append(engine, "a", bytes([n]))) for n in b"xyz"])
        assert [(u.start, u.end, u.closed) for u in readers[0].updates] == [(0, 3, False)]
        assert readers[0].updates[0] is readers[1].updates[0]
        assert readers[0].updates[0].frame(1) is readers[1].updates[0].frame(1)
        await engine.execute(append(engine, "a", b"", close=True))
        assert readers[0].updates[-1].closed
        await engine.execute(Delete("a", engine.now_ms()))
        assert [reader.ended for reader in readers] == [True, True]

    with_engine(body)


def test_waiting_ends_with_data_closure_deletion_or_time() -> None:
    async def body(engine: Engine) -> None:
        for command in (
            append(engine, "a", b"x"),
            append(engine, "a", b"", close=True),
            Delete("a", engine.now_ms()),
        ):
            await engine.execute(create(engine, "a"))
            stream = await engine.find("a", renew=True)
            waiting = asyncio.ensure_future(engine.wait(stream, 0, 60))
            await turn()
            assert not waiting.done()
            await engine.execute(command)
            await asyncio.wait_for(waiting, 1)
            assert stream.live_tail is None
            if not isinstance(command, Delete):
                await engine.execute(Delete("a", engine.now_ms()))
        await engine.execute(create(engine, "a"))
        await asyncio.wait_for(engine.wait(await engine.find("a", renew=True), 0, 0.01), 1)

    with_engine(body)


def test_reads_cross_forks_and_stay_bounded() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"aaaa"))
        reply = await engine.execute(append(engine, "a", b"bbbb"))
        await engine.execute(create(engine, "f", fork=ForkRequest("a", reply.next_offset), body=b"cc"))
        await engine.execute(append(engine, "a", b"later"))
        stream = await engine.find("f", renew=True)
        assert await engine.read(stream, 0, 100, 1000) == b"aaaabbbbcc"
        assert await engine.read(stream, 0, 100, 5) == b"aaaa"
        assert await engine.read(stream, 4, 100, 5) == b"bbbb"
        assert await engine.read(stream, 4, 9, 100) == b"bbbbc"
        with pytest.raises(InvalidOffsetError):
            await engine.read(stream, 3, 100, 100)

    with_engine(body)


def test_a_time_to_live_slides_with_reads_and_live_readers() -> None:
    clock = ManualClock()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", ttl_s=10))
        for _ in range(3):
            clock.ms += 9_000
            await engine.find("a", renew=True)
        clock.ms += 9_000
        stream = await engine.find("a", renew=False)
        reader = Reader()
        engine.subscribe(stream, reader)
        clock.ms += 60_000
        await engine.find("a", renew=False)
        engine.unsubscribe(stream, reader)
        clock.ms += 10_000
        with pytest.raises(StreamNotFoundError):
            await engine.find("a", renew=False)
        assert not (await engine.execute(create(engine, "a", ttl_s=10))).existed

    with_engine(body, clock=clock)


def test_expired_streams_are_swept_and_their_readers_sent_home() -> None:
    clock = ManualClock()
    store = MemoryStore()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", expires_ms=clock.ms + 5_000))
        stream = await engine.find("a", renew=True)
        waiting = asyncio.ensure_future(engine.wait(stream, 0, 60))
        clock.ms += 5_000
        await asyncio.wait_for(waiting, 5)
        assert await store.load("a") is None

    with_engine(body, store, clock=clock, limits=Limits(expiry_sweep_s=0.01))


def test_concurrent_creates_of_one_path_agree() -> None:
    async def body(engine: Engine) -> None:
        answers = await asyncio.gather(
            *[engine.execute(create(engine, "a", ttl_s=ttl)) for ttl in (1, 1, 2)], return_exceptions=True
        )
        assert [isinstance(answer, Reply) and answer.existed for answer in answers[:2]] == [False, True]
        assert isinstance(answers[2], ConflictError)

    with_engine(body)


def test_the_steady_clock_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, monotonic = [1_000.0], [50.0]
    monkeypatch.setattr("time.time", lambda: wall[0])
    monkeypatch.setattr("time.monotonic", lambda: monotonic[0])
    clock = SteadyClock()
    assert clock.now_ms() == 1_000_000
    wall[0] += 3600
    monotonic[0] += 10
    assert 1_010_000 <= clock.now_ms() <= 1_010_100
    wall[0] -= 7200
    monotonic[0] += 10
    assert 1_020_000 - 100 <= clock.now_ms() <= 1_020_100


def test_a_fork_made_beside_its_source_has_the_larger_id() -> None:
    async def body(engine: Engine) -> None:
        fork = create(engine, "f", fork=ForkRequest("a"))
        source = create(engine, "a", body=b"abc")
        first = asyncio.ensure_future(engine.execute(source))
        before = (await asyncio.gather(first, engine.execute(fork)))[1].next_offset
        after = (await engine.execute(append(engine, "f", b"x"))).next_offset
        assert after > before

    with_engine(body)


def test_a_gone_stream_leaves_nothing_behind_for_each_request() -> None:
    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        await engine.execute(create(engine, "f", fork=ForkRequest("a")))
        await engine.execute(Delete("a", engine.now_ms()))
        errors = []
        for _ in range(3):
            with pytest.raises(StreamGoneError) as error:
                await engine.find("a", renew=True)
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
            await engine.find("a", renew=False)

    with_engine(body, clock=clock)


def test_streams_that_are_not_used_are_let_go_of_and_come_back() -> None:
    async def body(engine: Engine) -> None:
        for number in range(20):
            await engine.execute(create(engine, f"s{number}", body=b"data"))
        for _ in range(100):
            await asyncio.sleep(0.01)
            if len(engine._view.ids) <= 5:
                break
        assert len(engine._view.ids) <= 5
        for number in range(20):
            assert (await engine.execute(create(engine, f"s{number}"))).existed
            assert (await engine.execute(append(engine, f"s{number}", b"more"))).next_offset.endswith("8")

    with_engine(body, limits=Limits(streams_loaded_max=5, expiry_sweep_s=0.01))


def test_one_answer_that_fails_is_not_the_others_concern() -> None:
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
