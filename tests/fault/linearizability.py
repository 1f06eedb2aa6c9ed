"""Checks that a history of concurrent requests to one stream is linearizable.

A history has the time at which each request was sent, the time at which its answer was received, and the answer. It is
linearizable if every request can be given one moment between the two, so that one server that executes them one at a
time at these moments gives the same answers. A request without an answer may have been executed at any time after it
was sent, or not at all.

The search is that of Wing and Gong in the order of Lowe: it keeps all pairs of a state and of the requests that have
been executed before they were answered, and executes requests only if an answer needs them. Three things keep it small:
an answer without an effect is executed as soon as it fits, every appended value is unique and has a length of `WIDTH`,
so that an offset says how many values are before it, and whatever some answer says about the place of a value holds for
all states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

WIDTH = 8  # bytes of a value

# Calls


@dataclass(frozen=True)
class Create:
    pass


@dataclass(frozen=True)
class Append:
    value: str  # empty: only a close
    close: bool = False
    if_match: tuple[int, int] | None = None  # incarnation and number of values
    producer: tuple[str, int, int] | None = None  # id, epoch, sequence


@dataclass(frozen=True)
class Delete:
    pass


@dataclass(frozen=True)
class Read:
    """Of everything after an offset (incarnation and number of values); None is the beginning."""

    after: tuple[int, int] | None = None


@dataclass(frozen=True)
class Head:
    pass


Call: TypeAlias = Create | Append | Delete | Read | Head


@dataclass(frozen=True)
class Answer:
    """`tail` is the offset that the answer names: incarnation and number of values."""

    status: int
    tail: tuple[int, int] | None = None
    closed: bool = False
    values: tuple[str, ...] | None = None  # of a read


@dataclass(frozen=True)
class Operation:
    """A request. `answer` is None if nobody knows whether it was executed; then `returned_s` is not used."""

    call: Call
    sent_s: float
    returned_s: float = 0.0
    answer: Answer | None = None
    note: str = ""  # who sent it, and to which server

    def __str__(self) -> str:
        until = f"{self.returned_s:.4f}" if self.answer is not None else "never"
        return f"{self.sent_s:.4f}..{until} {self.note} {self.call} -> {self.answer or 'unknown'}"


# The model: one server that executes one request at a time.


class Stream(NamedTuple):
    incarnation: int  # 0: not known yet, since nothing has named it
    values: tuple[str, ...] = ()
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    producers: tuple[tuple[str, int, int], ...] = ()  # id, epoch and last sequence, sorted

    def last_of(self, producer_id: str) -> tuple[int, int] | None:
        return next(((epoch, seq) for name, epoch, seq in self.producers if name == producer_id), None)

    def appended(self, call: Append) -> Stream:
        producers = self.producers
        if call.producer is not None:
            others = [known for known in producers if known[0] != call.producer[0]]
            producers = tuple(sorted([*others, call.producer]))
        values = (*self.values, call.value) if call.value else self.values
        closed_by = call.producer if call.close else None
        return Stream(self.incarnation, values, call.close, closed_by, producers)


class State(NamedTuple):
    stream: Stream | None = None
    newest: int = 0  # the highest incarnation that was named


def executed(state: State, call: Call) -> tuple[State, Answer]:
    """The state after a request, and its answer. The incarnation 0 in an answer stands for one that is not known."""
    stream = state.stream
    if isinstance(call, Create):
        if stream is None:
            return State(Stream(0), state.newest), Answer(201, (0, 0))
        return state, Answer(409) if stream.closed else _answer(200, stream)
    if stream is None:
        return state, Answer(404)
    if isinstance(call, Delete):
        return State(None, state.newest), Answer(204)
    if isinstance(call, Append):
        return _append(state, stream, call)
    if isinstance(call, Head):
        return state, _answer(200, stream)
    return state, _read(state, stream, call)


def _is_another(state: State, stream: Stream, incarnation: int) -> bool:
    """Whether an incarnation is not that of the stream. One that is not known yet is newer than all that were named."""
    return incarnation != stream.incarnation if stream.incarnation else incarnation <= state.newest


def _answer(status: int, stream: Stream, values: tuple[str, ...] | None = None) -> Answer:
    return Answer(status, (stream.incarnation, len(stream.values)), stream.closed, values)


def _read(state: State, stream: Stream, call: Read) -> Answer:
    if call.after is None:
        return _answer(200, stream, stream.values)
    incarnation, count = call.after
    if _is_another(state, stream, incarnation):
        return Answer(410)
    if count > len(stream.values):
        return Answer(400)
    return _answer(200, stream, stream.values[count:])


def _append(state: State, stream: Stream, call: Append) -> tuple[State, Answer]:
    if stream.closed:
        repeats = call.producer == stream.closed_by if call.producer is not None else not call.value
        return state, _answer(204 if repeats else 409, stream)
    if call.producer is not None:
        name, epoch, seq = call.producer
        known = stream.last_of(name)
        if known is not None and epoch < known[0]:
            return state, Answer(403)
        if known is not None and epoch == known[0] and seq <= known[1]:
            return state, _answer(204, stream)
        expected = known[1] + 1 if known is not None and epoch == known[0] else 0
        if seq != expected:
            return state, Answer(400 if known is not None and epoch > known[0] else 409)
    if call.if_match is not None:
        incarnation, count = call.if_match
        if _is_another(state, stream, incarnation) or count != len(stream.values):
            return state, _answer(412, stream)
    after = stream.appended(call)
    return State(after, state.newest), _answer(200 if call.producer is not None and call.value else 204, after)


# The search


class NotLinearizableError(AssertionError):
    """No order of the requests explains an answer."""


@dataclass
class _Places:
    """What answers say about the place of a value: its incarnation, and the number of values before it."""

    of: dict[str, tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int], str] = field(default_factory=dict)

    def note(self, value: str, place: tuple[int, int], operation: Operation) -> None:
        if self.of.setdefault(value, place) != place:
            raise NotLinearizableError(f"{value!r} is at {self.of[value]} and at {place}: {operation}")
        if self.at.setdefault(place, value) != value:
            raise NotLinearizableError(f"{self.at[place]!r} and {value!r} are both at {place}: {operation}")

    def allow(self, value: str, place: tuple[int, int]) -> bool:
        return self.of.get(value, place) == place and self.at.get(place, value) == value


def _places(history: Iterable[Operation]) -> _Places:
    places = _Places()
    for operation in history:
        call, answer = operation.call, operation.answer
        if answer is None or answer.tail is None:
            continue
        incarnation, count = answer.tail
        if answer.values is not None:
            for index, value in enumerate(answer.values, count - len(answer.values)):
                places.note(value, (incarnation, index), operation)
        elif isinstance(call, Append) and call.value and _is_new(call, answer):
            places.note(call.value, (incarnation, count - 1), operation)
    return places


def _is_new(call: Append, answer: Answer) -> bool:
    """Whether the answer says that this request has appended its value, and not an earlier one like it."""
    return answer.status == 200 or (answer.status == 204 and call.producer is None)


class _Search:
    def __init__(self, history: Sequence[Operation]) -> None:
        self._history = history
        self._places = _places(history)
        self._pending: set[int] = set()  # sent, and not answered

    def run(self) -> None:
        events = []
        for index, operation in enumerate(self._history):
            events.append((operation.sent_s, 0, index))
            if operation.answer is not None:
                events.append((operation.returned_s, 1, index))
        candidates: set[tuple[State, frozenset[int]]] = {(State(), frozenset())}
        for _, is_return, index in sorted(events):
            if not is_return:
                self._pending.add(index)
                candidates = {self._settled(*one, (index,)) for one in candidates}
                continue
            before, candidates = candidates, self._after_return(candidates, index)
            if not candidates:
                raise NotLinearizableError(self._report(before, index))
            self._pending.discard(index)

    def _after_return(
        self, candidates: set[tuple[State, frozenset[int]]], index: int
    ) -> set[tuple[State, frozenset[int]]]:
        """All that is possible once this request has been executed."""
        results, seen, stack = set(), set(candidates), list(candidates)
        while stack:
            state, done = stack.pop()
            if index in done:
                results.add((state, done - {index}))
                continue
            for other in self._distinct(done):
                after = self._step(state, self._history[other])
                if after is None or after == state:
                    continue
                one = self._settled(after, done | {other}, self._pending)
                if one not in seen:
                    seen.add(one)
                    stack.append(one)
        return results

    def _distinct(self, done: frozenset[int]) -> Iterator[int]:
        """Requests that can be executed. Of several without an answer that have the same effect, the first will do."""
        effects = set()
        for index in sorted(self._pending - done):
            operation = self._history[index]
            if operation.answer is None:
                call = operation.call
                if isinstance(call, Append) and call.value and call.value not in self._places.of:
                    call = replace(call, value="?")
                if call in effects or isinstance(call, Read | Head):
                    continue
                effects.add(call)
            yield index

    def _settled(self, state: State, done: frozenset[int], candidates: Iterable[int]) -> tuple[State, frozenset[int]]:
        """Execute requests whose answer fits and that change nothing. Nothing is gained if they are executed later."""
        fitting = [
            index
            for index in candidates
            if index not in done
            and self._history[index].answer is not None
            and self._step(state, self._history[index]) == state
        ]
        return state, done.union(fitting) if fitting else done

    def _step(self, state: State, operation: Operation) -> State | None:
        """The state after a request; None if its answer, or that of another request, does not fit."""
        call = operation.call
        answer = operation.answer
        if isinstance(call, Read) and call.after is not None and answer is not None and answer.status == 200:
            state = _named(state, call.after[0]) or state
        after, expected = executed(state, call)
        if answer is not None:
            named = _fitting(after, expected, answer)
            if named is None:
                return None
            after = named
        return self._placed(after, call) if isinstance(call, Append) and after != state else after

    def _placed(self, state: State, call: Append) -> State | None:
        stream = state.stream
        if stream is None or not call.value or not stream.values or stream.values[-1] != call.value:
            return state
        if not stream.incarnation and call.value in self._places.of:
            named = _named(state, self._places.of[call.value][0])
            if named is None or named.stream is None:
                return None
            state, stream = named, named.stream
        if stream.incarnation and not self._places.allow(call.value, (stream.incarnation, len(stream.values) - 1)):
            return None
        return state

    def _report(self, candidates: set[tuple[State, frozenset[int]]], index: int) -> str:
        states = sorted({str(state) for state, _ in candidates})[:3]
        pending = [str(self._history[other]) for other in sorted(self._pending - {index})][:20]
        before = [
            str(one)
            for one in sorted(self._history, key=lambda one: one.returned_s)
            if one.answer is not None and one.returned_s < self._history[index].returned_s
        ][-12:]
        lines = ["no order of the requests explains", f"  {self._history[index]}", "possible states before it:"]
        lines += [*(f"  {state}" for state in states), "answered before it:", *(f"  {one}" for one in before)]
        lines += ["unanswered then:", *(f"  {one}" for one in pending)]
        return "\n".join(lines)


def _fitting(state: State, expected: Answer, answer: Answer) -> State | None:
    """The state, if the answer of the model is the one that was given; None if not. An incarnation that was not known
    is the one that the answer names."""
    if answer.status != expected.status:
        return None
    if answer.tail is None or expected.tail is None:
        return state
    if answer.closed != expected.closed or answer.values != expected.values:
        return None
    if answer.tail[1] != expected.tail[1]:
        return None
    if expected.tail[0]:
        return state if answer.tail[0] == expected.tail[0] else None
    return _named(state, answer.tail[0])


def _named(state: State, incarnation: int) -> State | None:
    """The state in which the stream has this incarnation. Incarnations rise."""
    if state.stream is None:
        return None
    if state.stream.incarnation:
        return state if state.stream.incarnation == incarnation else None
    if incarnation <= state.newest:
        return None
    return State(state.stream._replace(incarnation=incarnation), incarnation)


def check(history: Sequence[Operation]) -> None:
    """Raise NotLinearizableError if the history of one stream, absent at its beginning, is not linearizable."""
    _Search(history).run()
