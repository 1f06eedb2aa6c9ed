"""After any restores: an offset of any history names the bytes that it named before, or is refused with 410."""

from __future__ import annotations

import copy
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import HeadwaterError, InvalidOffsetError, OffsetGoneError, TailMovedError
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.deciding import check_end
from headwater.log.offsets import Offset
from headwater.log.state import StreamState
from tests.unit.log.world import World

NOW_MS = 1_000_000
PATHS = ("a", "b", "c")

paths = st.sampled_from(PATHS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), paths, st.integers(1, 3)),
        st.tuples(st.just("create"), paths),
        st.tuples(st.just("fork"), paths, paths, st.integers(0, 9)),
        st.tuples(st.just("close"), paths),
        st.tuples(st.just("delete"), paths),
        st.tuples(st.just("save")),
        st.tuples(st.just("restore"), st.integers(0, 5)),
    ),
    min_size=5,
    max_size=40,
)


class Seen(NamedTuple):
    """What a reader saw at a path: the offset that it reached, the entity tag, and all bytes before."""

    offset: Offset
    version: int
    data: bytes


class Server:
    def __init__(self) -> None:
        self.world = World()
        self.saved = [copy.deepcopy(self.world)]
        self.next_id = 1
        self.number = 0
        self.seen: dict[str, set[Seen]] = {path: set() for path in PATHS}

    def step(self, step: tuple) -> None:  # type: ignore[type-arg]
        if step[0] == "save":
            self.saved.append(copy.deepcopy(self.world))
        elif step[0] == "restore":
            self.world = copy.deepcopy(self.saved[step[1] % len(self.saved)])
            self.next_id += 1
            self.world.timeline = self.next_id
        else:
            self._write(step)
        self._look()

    def _write(self, step: tuple) -> None:  # type: ignore[type-arg]
        kind, path, *rest = step
        self.next_id += 1
        self.number += 1
        try:
            if kind == "append":  # other bytes in every history, but at the same positions
                self.world.run(Append(path, NOW_MS, bytes([65 + self.number % 60]) * rest[0], "text/plain"))
            elif kind == "close":
                self.world.run(Append(path, NOW_MS, b"", close=True))
            elif kind == "delete":
                self.world.run(Delete(path, NOW_MS))
            else:
                fork = None if kind == "create" else self._fork_request(rest[0], rest[1])
                created = Create(path=path, now_ms=NOW_MS, stream_id=self.next_id, content_type="text/plain", fork=fork)
                self.world.run(created)
        except HeadwaterError:
            """A command that is refused changes nothing."""

    def _fork_request(self, source: str, position: int) -> ForkRequest:
        state = self.world.at(source)
        return ForkRequest(source, None if state is None else state.offset(min(position, state.tail)))

    def _look(self) -> None:
        for path in PATHS:
            if (state := self._live(path)) is not None:
                whole = self.world.bytes_of(state)
                for position in range(state.tail + 1):
                    offset = state.offset(position)
                    self.seen[path].add(Seen(offset, max(state.id, offset.id), whole[:position]))

    def _live(self, path: str) -> StreamState | None:
        state = self.world.at(path)
        return None if state is None or state.soft_deleted else state

    def check(self) -> None:
        for path, seen in self.seen.items():
            if (state := self._live(path)) is not None:
                whole = self.world.bytes_of(state)
                for one in seen:
                    self._check_offset(state, whole, one)
                    self._check_condition(state, whole, one)
                self._check_order(state)

    def _check_offset(self, state: StreamState, whole: bytes, seen: Seen) -> None:
        try:
            position = state.names.resolve(state.tail, seen.offset, self.world.timeline)
        except OffsetGoneError:
            return
        except InvalidOffsetError as error:
            raise AssertionError("an offset of the server is not malformed") from error
        assert whole[:position] == seen.data

    def _check_condition(self, state: StreamState, whole: bytes, seen: Seen) -> None:
        for end in (seen.offset, Offset(seen.version, seen.offset.position)):
            try:
                check_end(state, (end,))
            except TailMovedError:
                continue
            assert whole == seen.data

    def _check_order(self, state: StreamState) -> None:
        offsets = [state.offset(position) for position in range(state.tail + 1)]
        assert offsets == sorted(set(offsets))
        positions = [state.names.resolve(state.tail, offset, self.world.timeline) for offset in offsets]
        assert positions == list(range(state.tail + 1))


@settings(max_examples=300)
@given(steps)
def test_an_offset_of_any_history_names_the_same_bytes_or_is_gone(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    server = Server()
    for step in [("create", "a"), *sequence]:
        server.step(step)
        server.check()


@given(steps)
def test_replaying_the_events_of_all_timelines_gives_the_same_states(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    server = Server()
    for step in sequence:
        server.step(step)
    again = World()
    for event in server.world.history:
        again.apply(event)
    assert again.states == server.world.states


def test_an_append_begins_the_timeline_once_and_a_close_does_not() -> None:
    world = World()
    world.run(Create(path="a", now_ms=NOW_MS, stream_id=5, content_type="text/plain", body=b"12345"))
    world.timeline = 9
    state = world.states[5]
    assert world.run(Append("a", NOW_MS, b"67", "text/plain")).tail == Offset(9, 7)
    assert world.run(Append("a", NOW_MS, b"8", "text/plain")).tail == Offset(9, 8)
    state = world.states[5]
    assert [(one.id, one.start) for one in state.timelines] == [(9, 5)]
    world.timeline = 20
    assert world.run(Append("a", NOW_MS, b"", close=True)).tail == Offset(9, 8)
    assert len(world.states[5].timelines) == 1
