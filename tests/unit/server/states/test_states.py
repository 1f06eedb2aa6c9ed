"""States in memory: sharing, eviction, and builds during which the stream is deleted, trimmed or appended to."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine import Engine
from headwater.engine.messages import Read, VisibleStream
from headwater.errors import (
    InternalError,
    OffsetTrimmedError,
    OverloadedError,
    StateTooLargeError,
    StoppingError,
    StreamNotFoundError,
)
from headwater.limits import STATE_EAGER_S, STATE_IDLE_S, STATES_PAST_KEPT_MAX, STATES_PAST_WAITING_MAX, Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.protocol.state.entities import Entities
from headwater.server.states import States
from headwater.server.states.state import KeptState
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece
from tests.unit.engine.snapshots import compact
from tests.unit.engine.test_compacting import FAST, Today
from tests.unit.engine.test_engine import with_engine
from tests.waiting import wait_for_async, wait_until_async

TYPE = "application/json"


def events(count: int, first: int = 0, value: str = '"v"') -> bytes:
    one = '{"type":"t","key":"%d","value":%s,"headers":{"operation":"upsert"}}'
    return f"[{','.join(one % (number, value) for number in range(first, first + count))}]".encode()


async def create(engine: Engine, path: str = "s", body: bytes = b"") -> None:
    await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.JSON, body=body))


async def append(engine: Engine, body: bytes, path: str = "s") -> int:
    await engine.execute(Append(path, engine.now_ms(), body, TYPE))
    return (await find(engine, path)).tail


async def find(engine: Engine, path: str = "s") -> VisibleStream:
    return (await engine.read(Read(path, None))).stream


def with_stream(body: Callable[[Engine], Awaitable[None]], store: MemoryStore | None = None, **more: object) -> None:
    """Folds in threads need real time: `run=asyncio.run`."""

    async def main(engine: Engine) -> None:
        await create(engine)
        await body(engine)

    with_engine(main, store, **more)  # type: ignore[arg-type]


def count(kept: KeptState) -> int:
    return kept.entities.count


async def counted(engine: Engine, states: States, path: str = "s", limits: Limits | None = None) -> int:
    return await states.ask_now(engine, limits or Limits(), await find(engine, path), count)


class SlowReads(MemoryStore):
    """Reads wait until `go` is set, and fail if there is a `failure`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.reads = 0
        self.failure: Exception | None = None

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        self.reads += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return await super().read(stream_id, start, end, bytes_max)


def test_a_state_is_built_once_and_follows_its_stream() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(5))
        tasks = [asyncio.create_task(counted(engine, states)) for _ in range(10)]
        await asyncio.sleep(1)
        store.go.set()
        assert await asyncio.gather(*tasks) == [5] * 10
        assert (len(states), states.builds, states.hits, store.reads) == (1, 1, 0, 1)
        for number in range(6, 20):
            await append(engine, events(1, number - 1))
            assert await counted(engine, states) == number
        assert (states.builds, store.reads) == (1, 1)  # it got the appends themselves
        assert states.hits == 14

    with_stream(body, store)


def test_large_slices_are_folded_in_a_thread_and_seen_whole() -> None:
    async def body(engine: Engine) -> None:
        states = States()
        for first in range(0, 20_000, 5_000):
            await append(engine, events(5_000, first))
            assert await asyncio.gather(*[counted(engine, states) for _ in range(3)]) == [first + 5_000] * 3
        assert states.builds == 1

    with_stream(body, run=asyncio.run)


def test_a_state_that_nobody_asks_for_is_not_kept_current_but_catches_up() -> None:
    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(1))
        assert await counted(engine, states) == 1
        (kept,) = states._views.values()
        await asyncio.sleep(STATE_EAGER_S + 1)
        tail = await append(engine, events(1, 1))
        await append(engine, events(1, 2))
        assert kept.position < tail
        assert await counted(engine, states) == 3
        assert states.builds == 1
        await append(engine, events(1, 3))
        assert kept.entities.count == 4  # it is current again
        await asyncio.sleep(STATE_IDLE_S * 2)
        assert len(states) == 0
        assert not engine.report().subscribers.get("state")

    with_stream(body)


def test_a_build_that_nobody_waits_for_stops_and_is_continued() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(3))
        tasks = [asyncio.create_task(counted(engine, states)) for _ in range(2)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        (kept,) = states._views.values()
        await append(engine, events(3, 3))
        store.go.set()
        await wait_for_async(lambda: kept.is_busy, False)
        assert kept.entities.count <= 3
        assert await counted(engine, states) == 6
        assert states.builds == 1

    with_stream(body, store)


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_is_deleted_while_its_state_is_built(again: bool) -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(3))
        task = asyncio.create_task(counted(engine, states))
        await asyncio.sleep(1)
        await engine.execute(Delete("s", engine.now_ms()))
        if again:
            await create(engine, body=events(2))
        with pytest.raises(StreamNotFoundError):
            await task
        store.go.set()
        if again:
            assert await counted(engine, states) == 2
        else:
            with pytest.raises(StreamNotFoundError):
                await counted(engine, states)

    with_stream(body, store)


def test_a_stream_that_is_deleted_while_a_slice_of_it_is_folded_in_a_thread() -> None:
    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(30_000))
        for _ in range(20):
            task = asyncio.create_task(counted(engine, states))
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            await engine.execute(Delete("s", engine.now_ms()))
            await create(engine, body=events(random.choice((1, 10_000))))
            try:
                assert await task == 30_000
            except StreamNotFoundError:
                """It was deleted before the answer."""
            size = len((await engine.read(Read("s", bytes_max=1 << 30))).data)
            assert await counted(engine, states) == (1 if size < 1_000 else 10_000)
            await engine.execute(Delete("s", engine.now_ms()))
            await create(engine, body=events(30_000))

    with_stream(body, run=asyncio.run)


@pytest.mark.parametrize("during", [False, True])
def test_what_was_trimmed_is_not_part_of_the_state(during: bool) -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states = States()
        for number in range(4):
            await append(engine, events(1, number))
        if during:
            task = asyncio.create_task(counted(engine, states))
            await asyncio.sleep(1)
            tail = (await find(engine)).tail
            await engine.trim("s", before=(await find(engine)).offset(tail // 2))
            store.go.set()
            try:
                assert await task == 4
            except OffsetTrimmedError:
                """The handler of the request asks again."""
        else:
            store.go.set()
            assert await counted(engine, states) == 4
            tail = (await find(engine)).tail
            await engine.trim("s", before=(await find(engine)).offset(tail // 2))
        assert await counted(engine, states) == 2
        await append(engine, events(1, 9))
        assert await counted(engine, states) == 3

    with_stream(body, store)


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_compacted_stream_has_the_same_state_and_its_snapshot_is_read_only_if_need_be(is_seen: bool) -> None:
    clock = Today()

    async def body(engine: Engine) -> None:
        states = States()
        tails = [await append(engine, events(1, number % 3, str(number))) for number in range(9)]
        assert await counted(engine, states) == 3
        await compact(engine, "s", [events(3, 0, "0")], tails[5])
        assert await states.ask_at(engine, Limits(), await find(engine), tails[1], count) == 2
        assert states.builds == 2
        if is_seen:
            assert await counted(engine, states) == 3
        clock.pass_grace()
        await wait_until_async(lambda: first_is(engine, tails[5]))
        assert await counted(engine, states) == 3
        assert states.builds == (2 if is_seen else 3)
        states.drop_idle()
        assert await counted(engine, states) == 3  # from the snapshot
        assert await states.ask_at(engine, Limits(), await find(engine), tails[6], values) == ["6", "0", "0"]
        await append(engine, events(1, 7))
        assert await counted(engine, states) == 4
        await engine.trim("s", before=(await find(engine)).offset(tails[5]))  # it is already
        assert await counted(engine, states) == 4
        await engine.trim("s", before=(await find(engine)).offset(tails[8]))
        assert await counted(engine, states) == 1

    with_stream(body, clock=clock, limits=FAST)


def values(kept: KeptState) -> list[str]:
    return [bytes(entity.value).decode() for entity in kept.entities.page(None, b"", 100, 1_000).entities]


async def first_is(engine: Engine, first: int) -> bool:
    return (await find(engine)).first == first


def test_a_failed_read_fails_the_request_and_the_next_one_builds_again() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(3))
        store.go.set()
        store.failure = ValueError("a fault")
        with pytest.raises(InternalError):
            await counted(engine, states)
        store.failure = None
        assert await counted(engine, states) == 3
        assert states.builds == 2

    with_stream(body, store)


def test_an_unexpected_fault_does_not_reach_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Engine) -> None:
        states = States()
        await append(engine, events(3))
        assert await counted(engine, states) == 3
        with monkeypatch.context() as patch:
            patch.setattr(Entities, "fold", lambda *_: 1 / 0)
            await append(engine, events(1))
        (kept,) = states._views.values()
        assert kept.is_over
        assert await counted(engine, states) == 3

    with_stream(body)


def test_the_server_stops_while_a_state_is_built() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        await append(engine, events(3))
        states = States()
        task = asyncio.create_task(counted(engine, states))
        await asyncio.sleep(1)
        engine.drain()
        with pytest.raises(StoppingError):
            await task
        store.go.set()

    with_stream(body, store)


# Memory


def test_the_least_recently_used_states_are_evicted() -> None:
    async def body(engine: Engine) -> None:
        states, limits = States(), Limits(state_bytes_max=200_000)
        most = 0
        for number in range(60):
            await create(engine, f"s{number}", events(100, value='"' + "x" * 60 + '"'))
            assert await counted(engine, states, f"s{number}", limits) == 100
            assert await counted(engine, states, "s0", limits) == 100  # it is used all the time
            most = max(most, states.size_bytes)
            await asyncio.sleep(0.001)
        assert 100_000 < most <= limits.state_bytes_max
        assert states.builds == 60  # s0 was never evicted
        assert states.evictions == 60 - len(states)
        states.drop_idle()
        assert (len(states), states.size_bytes) == (0, 0)
        assert await counted(engine, states, "s0", limits) == 100

    with_stream(body)


def test_a_state_that_is_too_large_is_an_error_and_evicts_few_others() -> None:
    async def body(engine: Engine) -> None:
        states, limits = States(), Limits(state_bytes_max=400_000)
        for number in range(4):
            await create(engine, f"s{number}", events(100))
            await counted(engine, states, f"s{number}", limits)
        await append(engine, events(2_000, value='"' + "x" * 100 + '"'))
        for _ in range(3):
            with pytest.raises(StateTooLargeError, match="half of the limit state_bytes_max"):
                await counted(engine, states, "s", limits)
        assert states.builds == 5  # it was not read again and again
        assert (len(states), states.evictions) == (5, 0)
        assert states.size_bytes < 100_000
        await asyncio.sleep(STATE_IDLE_S * 2)
        await engine.trim("s", before=None)
        assert await counted(engine, states, "s", limits) == 0

    with_stream(body)


def test_states_that_grow_at_the_same_time_share_the_memory() -> None:
    async def body(engine: Engine) -> None:
        states, limits = States(), Limits(state_bytes_max=100_000)
        for number in range(8):
            await create(engine, f"s{number}", events(200, value='"' + "x" * 90 + '"'))
        answers = await asyncio.gather(
            *[counted(engine, states, f"s{number}", limits) for number in range(8)], return_exceptions=True
        )
        assert {200} <= set(answers) <= {200} | {answer for answer in answers if isinstance(answer, OverloadedError)}
        assert states.size_bytes <= limits.state_bytes_max

    with_stream(body)


# At an offset


def test_a_state_at_an_offset_is_built_once_for_its_pages() -> None:
    async def body(engine: Engine) -> None:
        states, limits = States(), Limits()
        tails = [await append(engine, events(1, number)) for number in range(20)]
        stream = await find(engine)
        for _ in range(3):
            assert await states.ask_at(engine, limits, stream, tails[4], count) == 5
        assert (states.builds, states.hits) == (1, 2)
        for number, tail in enumerate(tails, 1):
            assert await states.ask_at(engine, limits, stream, tail, count) == number
        assert sum(kept.until is not None for kept in states._views.values()) <= STATES_PAST_KEPT_MAX
        assert await states.ask_at(engine, limits, stream, 0, count) == 0

    with_stream(body)


def test_the_state_of_now_answers_for_its_offset_until_it_moves_on() -> None:
    async def body(engine: Engine) -> None:
        states, limits = States(), Limits()
        tail = await append(engine, events(2))
        stream = await find(engine)
        assert await states.ask_at(engine, limits, stream, tail, count) == 2
        assert [kept.until for kept in states._views.values()] == [None]
        await append(engine, events(2, 2))
        assert await states.ask_at(engine, limits, await find(engine), tail, count) == 2
        assert await counted(engine, states) == 4
        # The stream moves on between the request and the answer.
        stream = await find(engine)
        await append(engine, events(1, 9))
        assert await states.ask_at(engine, limits, stream, stream.tail, count) == 4

    with_stream(body)


def test_states_at_offsets_are_few_and_evicted_first() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        states, limits = States(), Limits()
        tails = [await append(engine, events(1, number)) for number in range(STATES_PAST_WAITING_MAX + 5)]
        stream = await find(engine)
        tasks = [asyncio.create_task(states.ask_at(engine, limits, stream, tail, count)) for tail in tails]
        await asyncio.sleep(1)
        store.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert len(refused) == 4  # the last one is the state of now
        assert await counted(engine, states) == len(tails)
        assert sum(kept.until is not None for kept in states._views.values()) > 0
        now = states._views[stream.id, None]
        await append(engine, events(1, 1_000))
        states._check(now, Limits(state_bytes_max=2 * now.size_bytes + 100))
        assert list(states._views.values()) == [now]

    with_stream(body, store)


def test_answers_are_states_at_one_offset_while_there_are_appends() -> None:
    """Each append sets all entities to its number, so an answer that mixes two of them shows."""

    def numbers(kept: KeptState) -> set[int]:
        page = kept.entities.page(None, b"", 1_000, 1 << 20)
        return {json.loads(bytes(entity.value)) for entity in page.entities}

    async def body(engine: Engine) -> None:
        states = States()
        seen: list[set[int]] = []

        async def read() -> None:
            for _ in range(30):
                stream = await find(engine)
                seen.append(await states.ask_now(engine, Limits(), stream, numbers))

        async def write() -> None:
            for number in range(40):
                await append(engine, events(600 if number % 2 else 20, value=str(number)))

        await asyncio.gather(write(), read(), read(), read())
        for one in seen:
            assert len(one) <= 2  # of the last append, and of the last one that had more entities

    with_stream(body, run=asyncio.run)
