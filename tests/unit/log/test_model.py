"""Random commands against a simple model of the protocol: same results, same bytes, same replay."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.log.commands import Append, Create, Delete, Expire, ForkRequest
from headwater.log.deciding import prefix_bytes
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.producers import ProducerTuple
from tests.unit.log.world import World

PATHS = ("a", "b", "c")
JSON, TEXT = "application/json", "text/plain"


@dataclass
class Naive:
    """The simplest stream: a list of records, each a list of messages."""

    content_type: str
    ttl_s: int | None
    accessed_ms: int
    records: list[list[bytes]] = field(default_factory=list)
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    seq: str | None = None
    producers: dict[str, list[int]] = field(default_factory=dict)
    source: Naive | None = None
    forks: int = 0
    deleted: bool = False
    config: tuple[object, ...] = ()

    def expired(self, now_ms: int) -> bool:
        return self.ttl_s is not None and now_ms >= self.accessed_ms + self.ttl_s * 1000

    def text(self) -> bytes:
        messages = [message for record in self.records for message in record]
        if self.content_type == JSON:
            return b"".join(message + b"," for message in messages)
        return b"".join(messages)


class Model:
    """The rules of the protocol as plain conditions. Errors are statuses."""

    def __init__(self) -> None:
        self.streams: dict[str, Naive] = {}

    def remove(self, path: str) -> None:
        stream = self.streams[path]
        if stream.forks:
            stream.deleted = True
            return
        del self.streams[path]
        source = stream.source
        while source is not None:
            source.forks -= 1
            if source.forks or not source.deleted:
                break
            self.streams = {p: s for p, s in self.streams.items() if s is not source}
            source = source.source

    def missing(self, path: str, now_ms: int) -> int | None:
        stream = self.streams.get(path)
        if stream is None or (stream.expired(now_ms) and not stream.forks and not stream.deleted):
            return 404
        return 410 if stream.deleted or stream.expired(now_ms) else None

    def ends_at(self, path: str, ends: list[str] | None) -> bool:
        at = {"tail", "entity tag"} | (set() if self.streams[path].text() else {"empty"})
        return ends is None or not at.isdisjoint(ends)

    def create(self, path, now_ms, content_type, ttl_s, closed, messages, fork) -> int:  # type: ignore[no-untyped-def]
        existing = self.streams.get(path)
        if existing is not None:
            if existing.deleted or (existing.expired(now_ms) and existing.forks):
                return 409
            if not existing.expired(now_ms):
                same = existing.config == (content_type, ttl_s, fork) and existing.closed == closed
                return 200 if same else 409
        swept = existing is not None
        if fork is None:
            if swept:
                self.remove(path)
            self.streams[path] = Naive(content_type, ttl_s, now_ms, closed=closed)
        else:
            status = self.fork(path, now_ms, content_type, ttl_s, closed, fork, swept)
            if status != 201:
                return status
        self.streams[path].config = (content_type, ttl_s, fork)
        if messages:
            self.streams[path].records.append(list(messages))
        return 201

    def fork(self, path, now_ms, content_type, ttl_s, closed, fork, swept) -> int:  # type: ignore[no-untyped-def]
        source_path, index, sub = fork
        missing = self.missing(source_path, now_ms)
        if missing is not None:
            return 404 if missing == 404 else 409
        source = self.streams[source_path]
        if content_type != source.content_type:
            return 409
        if index > len(source.records):
            return 400
        kept = [list(record) for record in source.records[:index]]
        if sub:
            record = source.records[index] if index < len(source.records) else []
            units = (
                record if content_type == JSON else [b"".join(record)[i : i + 1] for i in range(len(b"".join(record)))]
            )
            if sub > len(units):
                return 400
            kept.append(units[:sub])
        if swept:
            self.remove(path)
        source.forks += 1
        self.streams[path] = Naive(
            content_type,
            ttl_s if ttl_s is not None else source.ttl_s,
            now_ms,
            records=kept,
            closed=closed,
            source=source,
        )
        return 201

    def append(self, path, now_ms, content_type, messages, producer, seq, close, ends) -> int:  # type: ignore[no-untyped-def]
        missing = self.missing(path, now_ms)
        if missing is not None:
            return missing
        stream = self.streams[path]
        if not messages and not close:
            return 400
        if stream.closed:
            if producer is not None and producer == stream.closed_by:
                return 204
            return 204 if producer is None and not messages else 409
        if messages and content_type != stream.content_type:
            return 409
        if producer is not None:
            name, epoch, number = producer
            known = stream.producers.get(name)
            if known is None:
                if number != 0:
                    return 409
            elif epoch < known[0]:
                return 403
            elif epoch > known[0]:
                if number != 0:
                    return 400
            elif number <= known[1]:
                return 204
            elif number != known[1] + 1:
                return 409
        if seq is not None and stream.seq is not None and seq <= stream.seq:
            return 409
        if not self.ends_at(path, ends):
            return 412
        if producer is not None:
            stream.producers[producer[0]] = [producer[1], producer[2]]
        stream.seq = seq if seq is not None else stream.seq
        stream.accessed_ms = now_ms
        if messages:
            stream.records.append(list(messages))
        if close:
            stream.closed, stream.closed_by = True, producer
        return 200


def bodies(content_type: str) -> st.SearchStrategy[list[bytes]]:
    if content_type == JSON:
        value = st.sampled_from([b"1", b'"x"', b'{"k":[1,2]}', b"[3]", b"null"])
        return st.lists(value, max_size=3)
    return st.lists(st.binary(min_size=1, max_size=4), max_size=1)


types = st.sampled_from([JSON, TEXT])
paths = st.sampled_from(PATHS)
ends_named = st.none() | st.lists(st.sampled_from(["tail", "entity tag", "empty", "before", "another's"]), max_size=2)
producers = st.none() | st.tuples(st.sampled_from("pq"), st.integers(0, 2), st.integers(0, 2))


@st.composite
def creates(draw: st.DrawFn) -> tuple[object, ...]:
    content_type = draw(types)
    fork = draw(st.none() | st.tuples(paths, st.integers(0, 3), st.integers(0, 3)))
    ttl = draw(st.none() | st.integers(1, 3))
    return "create", draw(paths), content_type, ttl, draw(st.booleans()), draw(bodies(content_type)), fork


@st.composite
def appends(draw: st.DrawFn) -> tuple[object, ...]:
    content_type = draw(types)
    seq = draw(st.none() | st.sampled_from(["1", "10", "2"]))
    return (
        "append",
        draw(paths),
        content_type,
        draw(bodies(content_type)),
        draw(producers),
        seq,
        draw(st.booleans()),
        draw(ends_named),
    )


commands = st.lists(
    creates()
    | appends()
    | appends()
    | st.tuples(st.just("delete"), paths, ends_named)
    | st.tuples(st.sampled_from(["expire", "later"]), paths),
    max_size=30,
)


def body_of(content_type: str, messages: list[bytes]) -> bytes:
    if not messages:
        return b""
    return b"[" + b",".join(messages) + b"]" if content_type == JSON else b"".join(messages)


PAST_THE_TAIL = 10**15


def offset_of(world: World, source: str, index: int) -> Offset:
    """The offset after a number of records; beyond the tail if there are fewer."""
    state = world.at(source)
    if state is None:
        return BEGINNING
    position = count = 0
    while count < index:
        record = world.record_at(state, position)
        if not record:
            return Offset(state.offset(state.tail).id, PAST_THE_TAIL)
        position += len(record)
        count += 1
    return state.offset(position)


def ends_of(world: World, path: str, names: list[str] | None) -> tuple[Offset, ...] | None:
    state = world.at(path)
    if names is None:
        return None
    if state is None:
        return (BEGINNING,)
    places = {
        "tail": state.offset(state.tail),
        "entity tag": Offset(state.id, state.tail),
        "empty": BEGINNING,
        "before": Offset(state.id, state.tail - 1),
        "another's": Offset(state.id + 1, state.tail),
    }
    return tuple(places[name] for name in names)


def run(world: World, model: Model, now_ms: int, command: tuple) -> tuple[int, int]:  # type: ignore[type-arg]
    """The results of the model and of `decide` for one command."""
    kind, path, *rest = command
    if kind == "create":
        content_type, ttl_s, closed, messages, fork = rest
        expected = model.create(path, now_ms, content_type, ttl_s, closed, messages, fork)
        request = None
        if fork is not None:
            source = world.at(fork[0])
            offset = offset_of(world, fork[0], fork[1])
            existing = world.at(path)
            if existing and existing.fork and path in model.streams and model.streams[path].config[2] == fork:
                offset = existing.fork.offset
            taken = None
            if source is not None and fork[2] and offset.position != PAST_THE_TAIL:
                record = world.record_at(source, source.names.resolve(source.tail, offset))
                taken = prefix_bytes(source.kind, record, fork[2])
            request = ForkRequest(fork[0], offset, fork[2], taken)
        issued = Create(
            path=path,
            stream_id=world.next_id,
            now_ms=now_ms,
            content_type=content_type,
            ttl_s=ttl_s,
            closed=closed,
            body=body_of(content_type, messages),
            fork=request,
        )
        world.next_id += 1
        return expected, answer(world, issued)
    if kind == "append":
        content_type, messages, producer, seq, close, names = rest
        expected = model.append(path, now_ms, content_type, messages, producer, seq, close, names)
        ends = ends_of(world, path, names)
        sequence = None if producer is None else ProducerTuple(*producer)
        return expected, answer(
            world, Append(path, now_ms, body_of(content_type, messages), content_type, sequence, seq, close, ends=ends)
        )
    if kind == "delete":
        ends = ends_of(world, path, rest[0])
        expected = model.missing(path, now_ms) or (204 if model.ends_at(path, rest[0]) else 412)
        if expected == 204:
            model.remove(path)
        return expected, answer(world, Delete(path, now_ms, ends=ends))
    stream = model.streams.get(path)
    if stream is not None and not stream.deleted and stream.expired(now_ms):
        model.remove(path)
    return 204, answer(world, Expire(path, now_ms))


def answer(world: World, command: Create | Append | Delete | Expire) -> int:
    try:
        reply = world.run(command)
    except HeadwaterError as error:
        return error.status
    if isinstance(command, Create):
        return 200 if reply.existed else 201
    if isinstance(command, Append):
        return 204 if reply.duplicate else 200
    return 204


@pytest.mark.slow
@settings(max_examples=600)
@given(commands)
def test_decisions_agree_with_the_model(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    world, model, now_ms = World(), Model(), 1_000_000
    for command in sequence:
        if command[0] == "later":
            now_ms += 700
            continue
        expected, got = run(world, model, now_ms, command)
        assert got == expected, command
        assert set(world.paths) == set(model.streams)
        for path, naive in model.streams.items():
            state = world.at(path)
            assert state is not None
            assert world.bytes_of(state) == naive.text()
            assert state.tail == len(naive.text())
            assert (state.closed, state.forks, state.soft_deleted) == (naive.closed, naive.forks, naive.deleted)


@given(commands)
def test_replaying_the_events_gives_the_same_states(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    world, model, now_ms = World(), Model(), 1_000_000
    for command in sequence:
        if command[0] == "later":
            now_ms += 700
        else:
            run(world, model, now_ms, command)
    again = World()
    for event in world.history:
        again.apply(event)
    assert again.states == world.states
    assert again.records == world.records
    assert again.paths == world.paths


@given(commands)
def test_every_position_has_one_offset_in_order(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    world, model = World(), Model()
    for command in sequence:
        if command[0] != "later":
            run(world, model, 1_000_000, command)
    for state in world.states.values():
        offsets = [state.offset(position) for position in range(state.tail + 1)]
        assert offsets == sorted(set(offsets))
        positions = [state.names.resolve(state.tail, offset) for offset in offsets]
        assert positions == list(range(state.tail + 1))


@given(commands)
def test_json_streams_read_as_json(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    world, model = World(), Model()
    for command in sequence:
        if command[0] != "later":
            run(world, model, 1_000_000, command)
    for state in world.states.values():
        if state.content_type == JSON:
            json.loads(b"[" + world.bytes_of(state)[:-1] + b"]")
