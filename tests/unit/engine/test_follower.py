"""The follower by itself: its table of states, each event in each state, and every interleaving of a stream's life."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine import follower as follower_module
from headwater.engine.follower import (
    TRANSITIONS,
    Extent,
    FollowEvent,
    FollowState,
    Pulled,
    SharedSlices,
    StreamFollower,
)
from headwater.engine.messages import Ended, ReadMore, ReadReply, Reason, Slice, VisibleStream
from headwater.errors import InternalError, OffsetLostError, StoppingError, StreamGoneError, StreamNotFoundError
from headwater.limits import SLICE_KEPT_BYTES_MAX, SLICES_KEPT
from headwater.log.content import ContentKind
from headwater.log.offsets import Names, Offset
from headwater.transitions import ImpossibleTransitionError
from tests import virtual_time

READ_BYTES_MAX = 4


def info(tail: int, *, closed: bool = False) -> VisibleStream:
    return VisibleStream(1, "a", "text/plain", ContentKind.TEXT, 0, None, None, None, Names(1), tail, closed)


class FakeEngine:
    """A stream whose reads are answered when the test says so."""

    def __init__(self, content: bytes = b"", *, closed: bool = False) -> None:
        self.slices = SharedSlices(lambda: 0)
        self.content = content
        self.closed = closed
        self.refusal: Exception | None = None  # of `follow`
        self.subscribers: list[StreamFollower] = []
        self.reads: list[tuple[ReadMore, asyncio.Future[ReadReply]]] = []
        self.ready: Callable[[], bool] = lambda: True

    @property
    def info(self) -> VisibleStream:
        return info(len(self.content), closed=self.closed)

    def follow(self, stream_id: int, subscriber: StreamFollower) -> VisibleStream:
        if self.refusal is not None:
            raise self.refusal
        self.subscribers.append(subscriber)
        return self.info

    def unfollow(self, stream_id: int, subscriber: StreamFollower) -> None:
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)

    async def read_more(self, request: ReadMore) -> ReadReply:
        assert not self.reads, "two reads at a time"
        assert self.ready(), "a read for a consumer that is not ready"
        assert request.bytes_max == READ_BYTES_MAX
        answer: asyncio.Future[ReadReply] = asyncio.get_running_loop().create_future()
        self.reads.append((request, answer))
        try:
            return await answer
        finally:
            self.reads.clear()

    def reply(self, request: ReadMore, stream: VisibleStream) -> ReadReply:
        end = min(stream.tail, request.start + request.bytes_max)
        end = max(request.start, end if request.until is None else min(end, request.until))
        return ReadReply(stream, request.start, end, request.until, self.content[request.start : end])

    async def answer(self, outcome: Exception | None = None) -> None:
        """Answer the read in progress."""
        await turns()
        ((request, answer),) = self.reads
        if outcome is None:
            answer.set_result(self.reply(request, self.info))
        else:
            answer.set_exception(outcome)
        await turns()


class FakeConsumer:
    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self.refusing = False  # although it said that it was ready
        self.slices: list[Slice] = []
        self.reasons: list[Reason] = []
        self.taken: Callable[[], object] = lambda: None

    @property
    def data(self) -> bytes:
        return b"".join([piece.data for piece in self.slices])

    def take(self, piece: Slice) -> bool:
        assert not self.reasons
        if self.refusing or not self.ready:
            return False
        self.slices.append(piece)
        self.taken()
        return True

    def ended(self, reason: Reason) -> None:
        self.reasons.append(reason)


def update(start: int, data: bytes = b"x", *, closed: bool = False) -> Slice:
    end = start + len(data)
    return Slice(1, ContentKind.TEXT, start, end, Offset(1, end), data, closed, 0)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Rig:
    """A follower at position 3 of a stream, in a state. Unless it is live, the stream has 6 bytes."""

    def __init__(self, state: FollowState, extent: Extent = Extent.STREAM, until: int | None = None) -> None:
        self.engine = FakeEngine(b"abc" if state is FollowState.LIVE else b"abcdef")
        self.consumer = FakeConsumer(ready=state is not FollowState.BLOCKED)
        self.follower = StreamFollower(
            self.engine,
            self.consumer,
            "test",
            self.engine.info,
            3,
            bytes_max=READ_BYTES_MAX,
            until=until,
            extent=extent,
        )
        if state is not FollowState.NEW:
            self.follower.open()
        if state is FollowState.ENDED:
            self.follower.close()
        assert self.follower.state is state

    def refusing(self) -> Rig:
        self.consumer.refusing = True
        return self

    def blocked(self) -> Rig:
        self.consumer.ready = False
        return self

    def unblocked(self) -> Rig:
        self.consumer.ready = True
        return self

    def with_content(self, content: bytes) -> Rig:
        self.engine.content = content
        return self

    def on_take(self, act: Callable[[], object]) -> Rig:
        self.consumer.taken = act
        return self

    @property
    def outcome(self) -> tuple[FollowState, bytes, list[Reason]]:
        return self.follower.state, self.consumer.data, self.consumer.reasons


def run(work: Callable[[], object]) -> None:
    async def main() -> None:
        result = work()
        if asyncio.iscoroutine(result):
            await result

    virtual_time.run(main())


def test_every_state_can_be_reached_and_ends() -> None:
    assert set(TRANSITIONS) == set(FollowState)
    seen, new = {FollowState.NEW}, [FollowState.NEW]
    while new:
        for state in TRANSITIONS[new.pop()].values():
            if state not in seen:
                seen.add(state)
                new.append(state)
    assert seen == set(FollowState)
    for state, moves in TRANSITIONS.items():
        assert state is FollowState.ENDED or moves[FollowEvent.OVER] is FollowState.ENDED
    assert TRANSITIONS[FollowState.ENDED] == {}


def test_the_documentation_names_all_states_and_events() -> None:
    named = re.findall(r"^    ([A-Z_]+) +\w", follower_module.__doc__ or "", re.MULTILINE)
    assert named == [each.name for each in (*FollowState, *FollowEvent)]


@pytest.mark.parametrize("state", FollowState)
@pytest.mark.parametrize("event", FollowEvent)
def test_an_event_that_the_table_does_not_list_is_a_defect(state: FollowState, event: FollowEvent) -> None:
    def work() -> None:
        follower = Rig(state).follower
        after = TRANSITIONS[state].get(event)
        if after is None:
            with pytest.raises(ImpossibleTransitionError, match=f"{event.name} cannot happen while {state.name}"):
                follower._move(event)
        else:
            follower._move(event)
        assert follower.state is (after or state)
        if follower._reading is not None:
            follower._reading.cancel()

    run(work)


NEW, LIVE, READING, BLOCKED, ENDED = FollowState

# What happens to a follower from outside, and what follows in each state: the next state, what the consumer takes, and
# the reason of the end. An entry that is missing: the state stays, and the consumer notices nothing.
STIMULI: dict[str, tuple[Callable[[Rig], object], dict[FollowState, tuple[FollowState, bytes, list[Reason]]]]] = {
    "update": (lambda rig: rig.follower.deliver(update(3)), {LIVE: (LIVE, b"x", [])}),
    "empty update": (lambda rig: rig.follower.deliver(update(3, b"")), {LIVE: (LIVE, b"", [])}),
    "refused update": (lambda rig: rig.refusing().follower.deliver(update(3)), {LIVE: (BLOCKED, b"", [])}),
    "later update": (lambda rig: rig.follower.deliver(update(5)), {LIVE: (READING, b"", [])}),
    "later update, not ready": (
        lambda rig: rig.blocked().follower.deliver(update(5)),
        {LIVE: (BLOCKED, b"", [])},
    ),
    "update that was read before": (lambda rig: rig.follower.deliver(update(1)), {}),
    "closing update": (
        lambda rig: rig.follower.deliver(update(3, closed=True)),
        {LIVE: (ENDED, b"x", [Ended.CLOSED])},
    ),
    "closing alone": (
        lambda rig: rig.follower.deliver(update(3, b"", closed=True)),
        {LIVE: (ENDED, b"", [Ended.CLOSED])},
    ),
    "refused closing": (
        lambda rig: rig.refusing().follower.deliver(update(3, b"", closed=True)),
        {LIVE: (BLOCKED, b"", [])},
    ),
    "closing update that was read before": (
        lambda rig: rig.follower.deliver(update(2, closed=True)),
        {LIVE: (READING, b"", [])},
    ),
    "deletion": (
        lambda rig: rig.follower.ended(Ended.DELETED),
        {state: (ENDED, b"", [Ended.DELETED]) for state in (NEW, LIVE, READING, BLOCKED)},
    ),
    "draining": (
        lambda rig: rig.follower.ended(Ended.DRAINING),
        {state: (ENDED, b"", [Ended.DRAINING]) for state in (NEW, LIVE, READING, BLOCKED)},
    ),
    "close": (
        lambda rig: rig.follower.close(),
        {state: (ENDED, b"", []) for state in (NEW, LIVE, READING, BLOCKED)},
    ),
    "resume": (lambda rig: rig.unblocked().follower.resume(), {BLOCKED: (READING, b"", [])}),
    "resume, not ready": (lambda rig: rig.blocked().follower.resume(), {}),
    "end at the tail": (lambda rig: rig.follower.end_at_tail(), {LIVE: (ENDED, b"", [Ended.REACHED])}),
    "a tail that is not known yet": (lambda rig: rig.follower.expect(9), {LIVE: (READING, b"", [])}),
    "a tail that is known": (lambda rig: rig.follower.expect(3), {}),
}


@pytest.mark.parametrize("state", FollowState)
@pytest.mark.parametrize("stimulus", STIMULI)
def test_every_stimulus_in_every_state(state: FollowState, stimulus: str) -> None:
    act, expected = STIMULI[stimulus]

    def work() -> None:
        rig = Rig(state)
        act(rig)
        assert rig.outcome == expected.get(state, (state, b"", []))
        subscribed = rig.follower.state in (LIVE, READING, BLOCKED)
        assert rig.engine.subscribers == [rig.follower] * subscribed
        rig.follower.close()

    run(work)


@pytest.mark.parametrize("state", FollowState)
def test_only_a_follower_that_is_blocked_can_seek(state: FollowState) -> None:
    def work() -> None:
        rig = Rig(state)
        if state is BLOCKED:
            rig.follower.seek(5)
            assert rig.follower.position == 5
        else:
            with pytest.raises(ImpossibleTransitionError, match=f"cannot seek while {state.name}"):
                rig.follower.seek(5)
        rig.follower.close()

    run(work)


LOST = OffsetLostError("lost")
ANSWERS: dict[str, tuple[Callable[[Rig], object], Exception | None, FollowState, bytes, list[object]]] = {
    "all there is": (lambda rig: None, None, LIVE, b"def", []),
    "a part": (lambda rig: rig.with_content(b"abcdefghi"), None, READING, b"defg", []),
    "a part, and the consumer is full": (
        lambda rig: rig.with_content(b"abcdefghi").on_take(rig.blocked),
        None,
        BLOCKED,
        b"defg",
        [],
    ),
    "refused": (Rig.refusing, None, BLOCKED, b"", []),
    "more was appended meanwhile": (lambda rig: rig.follower.deliver(update(6, b"ghi")), None, READING, b"def", []),
    "the end": (lambda rig: setattr(rig.engine, "closed", True), None, ENDED, b"def", [Ended.CLOSED]),
    "up to the end that was set": (lambda rig: rig.follower.end_at_tail(), None, ENDED, b"def", [Ended.REACHED]),
    "the consumer closes": (
        lambda rig: rig.on_take(rig.follower.close),
        None,
        ENDED,
        b"def",
        [],
    ),
    "a position that is gone": (lambda rig: None, LOST, ENDED, b"", [LOST]),
    "a stream that is gone": (lambda rig: None, StreamGoneError("gone"), ENDED, b"", [Ended.DELETED]),
    "a stream that does not exist": (lambda rig: None, StreamNotFoundError("no"), ENDED, b"", [Ended.DELETED]),
    "a defect": (lambda rig: None, ZeroDivisionError(), ENDED, b"", [InternalError]),
    "nothing": (lambda rig: rig.with_content(b"abc"), None, ENDED, b"", [InternalError]),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_to_a_read(answer: str) -> None:
    act, error, state, data, reasons = ANSWERS[answer]

    async def work() -> None:
        rig = Rig(READING)
        act(rig)
        await rig.engine.answer(error)
        assert (rig.follower.state, rig.consumer.data) == (state, data)
        kinds = [type(reason) if type(reason) is InternalError else reason for reason in rig.consumer.reasons]
        assert kinds == reasons
        assert len(rig.engine.reads) == (state is READING)
        assert bool(rig.engine.subscribers) == (state is not ENDED)
        rig.follower.close()

    run(work)


def test_a_read_in_progress_is_cancelled_at_the_end() -> None:
    async def work() -> None:
        for end in (StreamFollower.close, lambda follower: follower.ended(Ended.DELETED)):
            rig = Rig(READING)
            await turns()
            assert rig.engine.reads
            end(rig.follower)
            await turns()
            assert not rig.engine.reads
            assert rig.follower._reading is None

    run(work)


def test_a_follower_ends_where_it_is_told_to() -> None:
    async def work() -> None:
        rig = Rig(READING, until=4)
        await rig.engine.answer()
        assert rig.outcome == (ENDED, b"d", [Ended.REACHED])
        rig = Rig(LIVE, until=4)
        rig.engine.content = b"abcdef"
        rig.follower.deliver(update(3, b"def"))
        await rig.engine.answer()
        assert rig.outcome == (ENDED, b"d", [Ended.REACHED])

    run(work)


def test_a_range_is_read_although_the_stream_is_deleted_or_the_server_stops() -> None:
    async def work() -> None:
        rig = Rig(READING, Extent.RANGE, until=6)
        rig.follower.ended(Ended.DRAINING)
        rig.follower.ended(Ended.DELETED)
        await rig.engine.answer()
        assert rig.outcome == (ENDED, b"def", [Ended.REACHED])
        engine, consumer = FakeEngine(b"abcdef"), FakeConsumer()
        engine.refusal = StoppingError("stopping")
        follower = StreamFollower(
            engine, consumer, "test", engine.info, 3, bytes_max=READ_BYTES_MAX, until=6, extent=Extent.RANGE
        )
        follower.open()
        await engine.answer()
        assert (consumer.data, consumer.reasons) == (b"def", [Ended.REACHED])

    run(work)


@pytest.mark.parametrize("error", [StoppingError("stopping"), StreamNotFoundError("deleted")])
def test_a_stream_that_cannot_be_followed_is_the_end(error: Exception) -> None:
    def work() -> None:
        rig = Rig(NEW)
        rig.engine.refusal = error
        rig.follower.open()
        assert rig.follower.state is ENDED
        assert rig.consumer.reasons == [Ended.DELETED if isinstance(error, StreamNotFoundError) else error]

    run(work)


@pytest.mark.parametrize("extent", [Extent.LIFE, Extent.NEWS])
def test_a_follower_for_life_stays_after_the_closing(extent: Extent) -> None:
    def work() -> None:
        for closed in (False, True):
            engine, consumer = FakeEngine(b"abc", closed=closed), FakeConsumer()
            follower = StreamFollower(engine, consumer, "test", engine.info, 3, extent=extent)
            follower.open()
            follower.deliver(update(3, b"" if closed else b"x", closed=True))
            assert (follower.state, consumer.reasons) == (LIVE, [])
            follower.ended(Ended.DELETED)
            assert (follower.state, consumer.reasons) == (ENDED, [Ended.DELETED])

    run(work)


def test_news_skip_what_was_missed() -> None:
    def work() -> None:
        rig = Rig(NEW, Extent.NEWS)
        rig.follower.open()
        assert (rig.outcome, rig.follower.position) == ((LIVE, b"", []), 6)
        rig = Rig(LIVE, Extent.NEWS)
        rig.follower.deliver(update(3, b"d"))
        rig.follower.deliver(update(8, b"i"))
        rig.follower.deliver(update(4, b"e"))
        assert rig.outcome == (LIVE, b"di", [])
        assert rig.follower.position == 9

    run(work)


def test_the_first_answer_is_passed_on_even_if_it_is_empty_or_was_refused() -> None:
    async def work() -> None:
        engine, consumer = FakeEngine(b"abc"), FakeConsumer(ready=False)
        follower = StreamFollower(engine, consumer, "test", engine.info, 3, bytes_max=READ_BYTES_MAX)
        follower.open(ReadReply(engine.info, 3, 3, None, b""))
        assert follower.state is BLOCKED
        consumer.ready = True
        follower.resume()
        await engine.answer()
        assert follower.state is LIVE
        assert [(piece.data, piece.at_tail) for piece in consumer.slices] == [(b"", True)]

    run(work)


def test_readers_at_the_same_place_share_a_slice_for_as_long_as_it_says_the_same() -> None:
    slices = SharedSlices(lambda: 0)
    reply = ReadReply(info(6), 0, 6, None, b"abcdef")
    first = slices.of(reply)
    assert slices.of(msgspec.structs.replace(reply)) is first
    longer, closed = slices.of(ReadReply(info(9), 0, 6, None, b"abcdef")), info(6, closed=True)
    assert (first.at_tail, longer.at_tail) == (True, False)
    assert slices.of(msgspec.structs.replace(reply, stream=closed)).closed
    for start in range(6, 6 + SLICES_KEPT):
        slices.of(ReadReply(info(99), start, start + 1, None, b"x"))
    assert slices.of(reply) is first  # while someone has it
    del first, longer
    large = ReadReply(
        info(SLICE_KEPT_BYTES_MAX + 1), 0, SLICE_KEPT_BYTES_MAX + 1, None, bytes(SLICE_KEPT_BYTES_MAX + 1)
    )
    slices.of(large)
    assert len(slices._slices) == SLICES_KEPT


# Interleavings

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 7)),
        st.tuples(st.just("tell"), st.integers(1, 3)),  # merge so many updates into one
        st.tuples(st.just("drop"), st.just(0)),  # an update that is merged into the next one without its data
        st.tuples(st.sampled_from(["block", "unblock", "refuse", "ask", "answer", "turn"]), st.just(0)),
    ),
    max_size=40,
)
ENDS = st.sampled_from([None, "close", "delete", "drain"])


class Life:
    """A stream that is written, told of and read in any order."""

    def __init__(self, engine: FakeEngine, consumer: FakeConsumer | None, follower: StreamFollower) -> None:
        self.engine = engine
        self.consumer = consumer
        self.follower = follower
        self.updates: list[Slice] = []  # that were not told yet
        self.seen: VisibleStream | None = None  # by the read in progress

    def append(self, count: int) -> None:
        start = len(self.engine.content)
        data = bytes([(start + number) % 251 for number in range(count)])
        self.engine.content += data
        self.updates.append(update(start, data))

    def close(self) -> None:
        self.engine.closed = True
        self.updates.append(update(len(self.engine.content), b"", closed=True))

    def tell(self, count: int) -> None:
        merged, self.updates = self.updates[:count], self.updates[count:]
        if merged and self.follower in self.engine.subscribers:
            data = b"".join([piece.data for piece in merged])
            self.follower.deliver(update(merged[0].start, data, closed=merged[-1].closed))

    def answer(self) -> None:
        """Answer with the stream as it was when it was asked for, if it was noted then."""
        if self.engine.reads and not self.engine.reads[0][1].done():
            request, answer = self.engine.reads[0]
            stream = self.engine.info if self.seen is None else self.seen
            self.seen = None
            answer.set_result(self.engine.reply(request, stream))

    async def step(self, name: str, number: int) -> None:
        consumer = self.consumer
        if name == "append" and not self.engine.closed:
            self.append(number)
        elif name == "tell":
            self.tell(number)
        elif name == "drop" and len(self.updates) > 1:
            del self.updates[0]
        elif name == "ask" and self.engine.reads and self.seen is None:
            self.seen = self.engine.info
        elif name == "answer":
            self.answer()
        elif name == "turn":
            await turns()
        elif consumer is not None:
            consumer.refusing = name == "refuse"
            if name == "block":
                consumer.ready = False
            elif name == "unblock":
                consumer.ready = True
                self.follower.resume()

    async def finish(self) -> None:
        """Let everything happen that is left to happen."""
        if self.consumer is not None:
            self.consumer.refusing = False
        for _ in range(200):
            if self.consumer is not None:
                self.consumer.ready = True
                self.follower.resume()
            self.tell(1)
            self.answer()
            await turns()


def check(life: Life, start: int, data: bytes, reasons: list[Reason], end: str | None) -> None:
    whole = life.engine.content[start:]
    assert whole.startswith(data)
    if end in (None, "close"):
        assert data == whole
    assert (
        reasons
        == {
            None: [],
            "close": [Ended.CLOSED],
            "delete": [Ended.DELETED],
            "drain": [Ended.DRAINING],
        }[end]
    )


async def live(life: Life, steps: list[tuple[str, int]], end: str | None, later: list[tuple[str, int]]) -> None:
    for name, number in steps:
        await life.step(name, number)
    if end == "close":
        life.close()
    elif end is not None:
        life.follower.ended(Ended.DELETED if end == "delete" else Ended.DRAINING)
    for name, number in later:
        await life.step(name, number)
    await life.finish()


@given(st.integers(0, 9), STEPS, ENDS, STEPS)
def test_a_consumer_gets_every_byte_once_in_order_and_one_end(
    start: int, steps: list[tuple[str, int]], end: str | None, later: list[tuple[str, int]]
) -> None:
    async def main() -> None:
        engine, consumer = FakeEngine(bytes(range(9))), FakeConsumer()
        engine.ready = lambda: consumer.ready
        follower = StreamFollower(engine, consumer, "test", engine.info, start, bytes_max=READ_BYTES_MAX)
        life = Life(engine, consumer, follower)
        follower.open()
        await live(life, steps, end, later)
        check(life, start, consumer.data, consumer.reasons, end)
        assert follower.state is (LIVE if end is None else ENDED)
        follower.close()

    virtual_time.run(main())


@given(STEPS, ENDS, STEPS, st.lists(st.integers(0, 3)))
def test_code_that_awaits_slices_gets_every_byte_once_in_order_and_the_end(
    steps: list[tuple[str, int]], end: str | None, later: list[tuple[str, int]], pauses: list[int]
) -> None:
    async def main() -> None:
        engine = FakeEngine(bytes(range(9)))
        pulled = Pulled(engine, "test", engine.info, 0, bytes_max=READ_BYTES_MAX)
        engine.ready = lambda: pulled.ready
        life = Life(engine, None, pulled.follower)
        pulled.follower.open()
        data = bytearray()

        async def pull() -> None:
            waits = iter(pauses)
            while (piece := await pulled.next()) is not None:
                data.extend(piece.data)
                for _ in range(next(waits, 0)):
                    await turns()

        task = asyncio.create_task(pull())
        await live(life, steps, end, later)
        assert task.done() == (end is not None)
        check(life, 0, bytes(data), [] if pulled.reason is None else [pulled.reason], end)
        task.cancel()
        await turns()
        pulled.follower.close()

    virtual_time.run(main())


def test_code_that_awaits_a_slice_gets_the_error_of_a_read() -> None:
    async def work() -> None:
        engine = FakeEngine(b"abc")
        pulled = Pulled(engine, "test", engine.info, 0, bytes_max=READ_BYTES_MAX)
        pulled.follower.open()
        assert pulled.follower.state is BLOCKED  # nothing is read before it is awaited
        awaited = asyncio.create_task(pulled.next())
        await engine.answer(LOST)
        for task in (awaited, asyncio.create_task(pulled.next())):
            with pytest.raises(OffsetLostError):
                await task

    run(work)
