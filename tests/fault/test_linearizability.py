"""The checker of histories finds what it looks for, and accepts every history of one server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fault.linearizability import (
    Answer,
    Append,
    Call,
    Create,
    Delete,
    Head,
    NotLinearizableError,
    Operation,
    Read,
    State,
    check,
    executed,
)


def at(sent_s: float, returned_s: float, call: Call, answer: Answer | None) -> Operation:
    return Operation(call, sent_s, returned_s, answer)


def unknown(sent_s: float, call: Call) -> Operation:
    return Operation(call, sent_s)


CREATED = at(0, 1, Create(), Answer(201, (7, 0)))


def appended(sent_s: float, returned_s: float, value: str, count: int) -> Operation:
    return at(sent_s, returned_s, Append(value), Answer(204, (7, count)))


def read(sent_s: float, returned_s: float, *values: str, incarnation: int = 7, closed: bool = False) -> Operation:
    return at(sent_s, returned_s, Read(), Answer(200, (incarnation, len(values)), closed, values))


GOOD: dict[str, list[Operation]] = {
    "a read during an append has it or not": [
        CREATED,
        appended(2, 9, "a", 1),
        read(3, 4),
        read(5, 6, "a"),
        read(7, 8, "a"),
    ],
    "an append without an answer is stored late": [
        CREATED,
        unknown(2, Append("a")),
        read(3, 4),
        appended(5, 6, "b", 1),
        read(7, 8, "b", "a"),
    ],
    "an append without an answer is never stored": [CREATED, unknown(2, Append("a")), read(3, 4), read(5, 6)],
    "a delete without an answer is executed late": [
        CREATED,
        unknown(2, Delete()),
        appended(3, 4, "a", 1),
        at(5, 6, Head(), Answer(404)),
        at(7, 8, Create(), Answer(201, (9, 0))),
    ],
    "a create without an answer": [
        unknown(0, Create()),
        at(1, 2, Head(), Answer(404)),
        at(3, 4, Append("a"), Answer(204, (5, 1))),
    ],
    "a delete and a create without answers between two reads": [
        CREATED,
        appended(2, 3, "a", 1),
        unknown(4, Delete()),
        unknown(4, Create()),
        read(5, 6, "a"),
        read(7, 8, incarnation=9),
    ],
    "a condition and an offset of the stream before a create without an answer": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        unknown(4, Create()),
        at(5, 6, Append("a", if_match=(7, 0)), Answer(412, (9, 0))),
        at(7, 8, Read((7, 0)), Answer(410)),
    ],
    "an offset of the stream before a create without an answer": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        unknown(4, Create()),
        at(5, 6, Read((7, 0)), Answer(410)),
    ],
    "one of two conditional appends wins": [
        CREATED,
        at(2, 5, Append("a", if_match=(7, 0)), Answer(412, (7, 1))),
        at(2, 5, Append("b", if_match=(7, 0)), Answer(204, (7, 1))),
    ],
    "a retry by a producer": [
        CREATED,
        unknown(2, Append("a", producer=("p", 0, 0))),
        at(3, 4, Append("a", producer=("p", 0, 0)), Answer(204, (7, 1))),
        read(5, 6, "a"),
    ],
    "a stream is closed meanwhile": [
        CREATED,
        at(2, 5, Append("", close=True), Answer(204, (7, 1), closed=True)),
        at(2, 4, Append("a"), Answer(204, (7, 1))),
        at(3, 6, Append("b"), Answer(409, (7, 1), closed=True)),
    ],
    "an offset of an earlier incarnation": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        at(4, 5, Create(), Answer(201, (8, 0))),
        at(6, 7, Read((7, 0)), Answer(410)),
    ],
}

BROKEN: dict[str, list[Operation]] = {
    "a lost append": [CREATED, appended(2, 3, "a", 1), read(4, 5)],
    "a stale read": [CREATED, appended(2, 3, "a", 1), appended(4, 5, "b", 2), read(6, 7, "a")],
    "two reads in the wrong order": [CREATED, appended(2, 9, "a", 1), read(3, 4, "a"), read(5, 6)],
    "a stale HEAD": [CREATED, appended(2, 3, "a", 1), at(4, 5, Head(), Answer(200, (7, 0)))],
    "an append twice": [CREATED, appended(2, 3, "a", 1), read(4, 5, "a", "a")],
    "a producer's append twice": [
        CREATED,
        at(2, 3, Append("a", producer=("p", 0, 0)), Answer(200, (7, 1))),
        at(4, 5, Append("a", producer=("p", 0, 0)), Answer(200, (7, 2))),
    ],
    "a duplicate that was never stored": [
        CREATED,
        at(2, 3, Append("a", producer=("p", 0, 0)), Answer(204, (7, 0))),
    ],
    "a gap that is none": [
        CREATED,
        at(2, 3, Append("a", producer=("p", 0, 0)), Answer(200, (7, 1))),
        at(4, 5, Append("b", producer=("p", 0, 1)), Answer(409)),
    ],
    "two appends at one place": [CREATED, appended(2, 3, "a", 1), appended(4, 5, "b", 1)],
    "both conditional appends win": [
        CREATED,
        at(2, 5, Append("a", if_match=(7, 0)), Answer(204, (7, 1))),
        at(2, 5, Append("b", if_match=(7, 0)), Answer(204, (7, 2))),
    ],
    "a refusal from an old tail": [
        CREATED,
        appended(2, 3, "a", 1),
        at(4, 5, Append("b", if_match=(7, 1)), Answer(412, (7, 0))),
    ],
    "a 412 although the tail matches": [
        CREATED,
        at(2, 3, Append("b", if_match=(7, 0)), Answer(412, (7, 0))),
    ],
    "a stream is gone without a delete": [CREATED, at(2, 3, Head(), Answer(404))],
    "a stale 404": [
        at(0, 1, Head(), Answer(404)),
        at(2, 3, Create(), Answer(201, (7, 0))),
        at(4, 5, Append("a"), Answer(404)),
    ],
    "a deleted stream is back": [
        CREATED,
        appended(2, 3, "a", 1),
        at(4, 5, Delete(), Answer(204)),
        read(6, 7, "a"),
    ],
    "a read of an earlier incarnation": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        at(4, 5, Create(), Answer(201, (8, 0))),
        read(6, 7),
    ],
    "an offset of an earlier incarnation is accepted": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        at(4, 5, Create(), Answer(201, (8, 0))),
        at(6, 7, Read((7, 0)), Answer(200, (8, 0), values=())),
    ],
    "an incarnation is used again": [
        CREATED,
        at(2, 3, Delete(), Answer(204)),
        at(4, 5, Create(), Answer(201, (7, 0))),
    ],
    "two creates": [CREATED, at(2, 3, Create(), Answer(201, (8, 0)))],
    "two deletes": [CREATED, at(2, 5, Delete(), Answer(204)), at(2, 5, Delete(), Answer(204))],
    "an append after a close": [
        CREATED,
        at(2, 3, Append("", close=True), Answer(204, (7, 0), closed=True)),
        appended(4, 5, "a", 1),
    ],
    "a closed stream is open again": [
        CREATED,
        at(2, 3, Append("", close=True), Answer(204, (7, 0), closed=True)),
        at(4, 5, Head(), Answer(200, (7, 0))),
    ],
    "an append without an answer is stored twice": [CREATED, unknown(2, Append("a")), read(3, 4, "a", "a")],
    "an append is read before it was sent": [CREATED, read(2, 3, "a"), appended(4, 5, "a", 1)],
    "an append without an answer is stored and lost": [CREATED, unknown(2, Append("a")), read(3, 4, "a"), read(5, 6)],
}


@pytest.mark.parametrize("name", GOOD)
def test_histories_of_one_server_are_accepted(name: str) -> None:
    check(GOOD[name])


@pytest.mark.parametrize("name", BROKEN)
def test_broken_histories_are_found(name: str) -> None:
    with pytest.raises(NotLinearizableError):
        check(BROKEN[name])


def simulated(rng: random.Random, count: int) -> Iterator[Operation]:
    """What some clients see of a server that executes one request at a time. Some answers are lost, and some requests
    as well."""
    state, now_s, incarnation = State(), 0.0, 100
    tail = (0, 0)
    seqs: dict[str, int] = {}
    for number in range(count):
        now_s += rng.random()
        producer = f"p{rng.randrange(2)}"
        call: Call = rng.choices(
            (
                Create(),
                Append(f"{number:08d}"),
                Append(f"{number:08d}", if_match=tail),
                Append(f"{number:08d}", producer=(producer, 0, seqs.get(producer, 0))),
                Append("", close=True),
                Delete(),
                Read(),
                Read(tail),
                Head(),
            ),
            (3, 8, 4, 4, 1, 1, 8, 3, 4),
        )[0]
        sent_s, returned_s = now_s - rng.random() * 3, now_s + rng.random() * 3
        if rng.random() < 0.04:  # a request is lost
            yield Operation(call, sent_s)
            continue
        after, answer = executed(state, call)
        if after.stream is not None and not after.stream.incarnation:
            incarnation += 1
            after = State(after.stream._replace(incarnation=incarnation), incarnation)
        if answer.tail is not None:
            tail = (after.stream.incarnation if after.stream is not None else 0, answer.tail[1])
            answer = replace(answer, tail=tail)
        if isinstance(call, Append) and call.producer is not None and after != state:
            seqs[producer] = call.producer[2] + 1
        if isinstance(call, Delete):
            seqs = {}
        state = after
        lost = rng.random() < 0.06
        yield Operation(call, sent_s, 0.0 if lost else returned_s, None if lost else answer)


def test_simulated_histories_are_accepted() -> None:
    for seed in range(60):
        check(list(simulated(random.Random(seed), 120)))


def test_damage_to_a_simulated_history_is_found() -> None:
    """A read loses the newest of its values although another read that had ended before had it."""
    damaged = 0
    for seed in range(60):
        history = list(simulated(random.Random(seed), 120))
        for index, one in enumerate(history):
            answer = one.answer
            if answer is None or not answer.values or answer.tail is None or not isinstance(one.call, Read):
                continue
            is_known = any(
                other.answer is not None
                and other.returned_s < one.sent_s
                and other.answer.tail == answer.tail
                and other.answer.status in (200, 204)
                for other in history
            )
            if one.call.after is None and is_known:
                tail = (answer.tail[0], answer.tail[1] - 1)
                history[index] = replace(one, answer=replace(answer, values=answer.values[:-1], tail=tail))
                with pytest.raises(NotLinearizableError):
                    check(history)
                damaged += 1
                break
    assert damaged > 20
