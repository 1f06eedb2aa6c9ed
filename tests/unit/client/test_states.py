"""The tables of states of a read, of a producer and of its batches: complete, reachable, and never left."""

from __future__ import annotations

import enum
import random
import re
from typing import Any

import pytest

from headwater.client import outbox, reading
from headwater.client.flows import AppendResult
from headwater.client.outbox import (
    BATCH_TRANSITIONS,
    PRODUCER_TRANSITIONS,
    BatchEvent,
    BatchState,
    Outbox,
    OutboxState,
    PendingBatch,
    ProducerEvent,
    ProducerIdentity,
    ProducerSettings,
)
from headwater.client.reading import BEGINNINGS, READ_TRANSITIONS, Attempts, FeedRecord, ReadEvent, ReadState
from headwater.client.session import Retry
from headwater.errors import (
    ClientError,
    HeadwaterError,
    NetworkError,
    OverloadedError,
    ProtocolError,
    SequenceGapError,
    StreamNotFoundError,
)
from headwater.transitions import ImpossibleTransitionError, Transitions, next_state

Machine = tuple[Transitions[Any, Any], type[enum.Enum], type[enum.Enum], set[Any], set[Any]]

# The table, its states and events, the states in which it begins and those that it never leaves.
MACHINES: dict[str, Machine] = {
    "read": (READ_TRANSITIONS, ReadState, ReadEvent, set(BEGINNINGS.values()), {ReadState.ENDED}),
    "producer": (
        PRODUCER_TRANSITIONS,
        OutboxState,
        ProducerEvent,
        {OutboxState.OPEN},
        {OutboxState.STOPPED},
    ),
    "batch": (
        BATCH_TRANSITIONS,
        BatchState,
        BatchEvent,
        {BatchState.QUEUED},
        {BatchState.STORED, BatchState.FAILED},
    ),
}


def reachable(transitions: Transitions[Any, Any], start: Any) -> set[Any]:
    states, new = {start}, [start]
    while new:
        for state in transitions[new.pop()].values():
            if state not in states:
                states.add(state)
                new.append(state)
    return states


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_can_end(machine: str) -> None:
    transitions, states, _, beginnings, ends = MACHINES[machine]
    assert set(transitions) == set(states)
    assert set.union(*(reachable(transitions, state) for state in beginnings)) == set(states)
    for state in states:
        assert reachable(transitions, state) & ends, state
    for end in ends:
        assert reachable(transitions, end) == {end}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_event_in_every_state_moves_or_raises(machine: str) -> None:
    transitions, states, events, _, _ = MACHINES[machine]
    impossible = 0
    for state in states:
        for event in events:
            if event in transitions[state]:
                assert next_state(transitions, state, event) is transitions[state][event]
                continue
            impossible += 1
            with pytest.raises(ImpossibleTransitionError, match=f"{event.name} cannot happen while {state.name}"):
                next_state(transitions, state, event)
    assert impossible


@pytest.mark.parametrize(
    ("text", "states"), [(reading.__doc__, ReadState), (outbox.__doc__, {*OutboxState, *BatchState})]
)
def test_the_theory_names_every_state(text: str, states: Any) -> None:
    documented = set(re.findall(r"^    ([A-Z_]{4,}) ", text, re.MULTILINE))
    assert documented == {state.name for state in states}


def test_moves_that_lose_or_repeat_messages_are_impossible() -> None:
    for state in (BatchState.STORED, BatchState.FAILED, BatchState.ABANDONED):
        assert BatchEvent.SEND not in BATCH_TRANSITIONS[state]
    assert OutboxState.OPEN not in {state for moves in PRODUCER_TRANSITIONS.values() for state in moves.values()}
    assert not READ_TRANSITIONS[ReadState.ENDED]


def test_a_batch_that_is_stored_is_not_sent_again() -> None:
    batch = PendingBatch([b"x"], 1, [], 0.0)
    batch.move(BatchEvent.SEND)
    batch.move(BatchEvent.STORED)
    with pytest.raises(ImpossibleTransitionError):
        batch.move(BatchEvent.SEND)
    assert batch.state is BatchState.STORED


DEEDS = [*["add", "take", "answer"] * 3, "close", "finish", "stop"]
ANSWERS: list[HeadwaterError | AppendResult | None] = [
    AppendResult("1"),
    AppendResult("1"),
    AppendResult("1", duplicate=True),
    NetworkError(),
    OverloadedError(),
    SequenceGapError(),
    StreamNotFoundError(),
    None,  # not an answer: a hook raises
]


@pytest.mark.parametrize("seed", range(300))
def test_no_order_of_calls_and_answers_leaves_the_tables(seed: int) -> None:
    """Anything may happen at any time, as threads, time-outs and users do it; every message has one outcome."""
    dice = random.Random(seed)
    settings = ProducerSettings(
        batch_bytes=4, linger_s=dice.choice([0.0, 5.0]), in_flight_max=3, queue_bytes=100, delivery_timeout_s=20.0
    )
    outcomes = []
    box = Outbox(ProducerIdentity("p", 0, claiming=True), settings, Retry(first_s=1, most_s=1), None)
    in_flight: list[PendingBatch] = []
    now = 0.0
    for _ in range(60):
        now += dice.random()
        deed = dice.choice(
            ["add", "add", "add", "take", "take", "answer", "answer", "answer", "close", "finish", "stop"]
        )
        if deed == "add" and box.accepts:
            box.add(b"m", None, now)
        elif deed == "take" and not box.stopped and (batch := box.take(now)) is not None:
            in_flight.append(batch)
        elif deed == "answer" and in_flight:
            batch = in_flight.pop(dice.randrange(len(in_flight)))
            answer = dice.choice(ANSWERS)
            if isinstance(answer, AppendResult):
                outcomes.append(box.stored(batch, answer))
            elif answer is None:
                outcomes.append(box.broken(batch, RuntimeError("hook")))
            else:
                outcomes.append(box.failed(batch, answer, now, 0.5))
        elif deed == "close" and dice.random() < 0.2:
            box.close()
        elif deed == "finish" and dice.random() < 0.2 and box.accepts:
            box.finish(None, now)
        elif deed == "stop" and dice.random() < 0.2:
            box.close()
            outcomes.append(box.give_up(ClientError("closed")))
            box.stop()
    box.close()
    outcomes.append(box.give_up(ClientError("closed")))
    box.stop()
    for batch in in_flight:
        outcomes.append(box.stored(batch, AppendResult("1")))
    assert sum(outcome.messages for outcome in outcomes) == box.metrics.messages
    assert (box.metrics.in_flight, box.metrics.bytes_waiting) == (0, 0)
    assert box.metrics.messages == box.metrics.messages_delivered + box.metrics.messages_failed


def test_a_read_gives_up_if_the_server_never_responds_and_at_final_errors() -> None:
    attempts = Attempts(3)
    attempts.fail(NetworkError())
    attempts.fail(NetworkError())
    with pytest.raises(NetworkError):
        attempts.fail(NetworkError())
    attempts.contacted = True
    attempts.fail(NetworkError())  # after a response it goes on
    with pytest.raises(StreamNotFoundError):
        attempts.fail(StreamNotFoundError())


def test_feeds_are_given_up_sooner_if_they_never_worked() -> None:
    lost = NetworkError()
    lost.how = "lost"
    feeds = FeedRecord()
    assert [feeds.shows_no_feeds(lost) for _ in range(2)] == [False, True]
    feeds = FeedRecord()
    feeds.received()
    assert [feeds.shows_no_feeds(lost) for _ in range(5)] == [False] * 4 + [True]
    feeds.received()
    assert not feeds.shows_no_feeds(lost)
    away = NetworkError()
    away.how = "connect"
    assert not any(FeedRecord().shows_no_feeds(away) for _ in range(9))
    assert FeedRecord().shows_no_feeds(ProtocolError("expected server-sent events"))


def test_a_stream_cannot_be_closed_by_a_producer_that_was_stopped_before_it_was() -> None:
    settings = ProducerSettings(batch_bytes=4, linger_s=0.0, in_flight_max=3, queue_bytes=100, delivery_timeout_s=20.0)
    box = Outbox(ProducerIdentity("p", 0, claiming=False), settings, Retry(), None)
    box.finish(None, 0.0)
    box.finish(None, 0.0)  # a second call has no effect
    box.close()
    box.stop()
    with pytest.raises(RuntimeError, match="the producer is closed"):
        box.finish(None, 0.0)
