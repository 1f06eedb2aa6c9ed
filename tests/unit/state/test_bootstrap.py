"""Restarts: a state from a checkpoint at any point, or from a snapshot, is the state of the whole stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client import Batch, Position, StreamInfo
from headwater.errors import InvalidEventError
from headwater.state import Collection, control_event, define_state
from headwater.state.bootstrap import (
    RawState,
    SnapshotFold,
    Start,
    decode_checkpoint,
    encode_checkpoint,
    newest_first,
)
from headwater.state.checkpoints import load, save
from headwater.state.following import EVENTS, Following, database_of, settings_of
from tests.unit.protocol.state.test_events import CHANGES, fold

DEFINITION = define_state({"users": Collection("user", Any, indexes=("a",)), "orders": Collection("order", Any)})
URL = "http://server/v1/stream/s"


def following(**options: Any) -> Following:
    settings = settings_of(True, "a file", 30.0, True, None)
    return Following(URL, DEFINITION, settings, database_of(DEFINITION, options.get("on_bad_event", "log"), 100))


def contents(one: Following) -> dict[tuple[str, str], Any]:
    tables = one.database.tables.values()
    return {(table.definition.type, key): value for table in tables for key, value in table.items()}


EVENTS_OF_ALL_KINDS = st.lists(
    st.one_of(
        CHANGES,
        st.sampled_from(["reset", "snapshot-start", "snapshot-end", "up-to-date"]).map(
            lambda control: {"headers": {"control": control}}
        ),
        st.just({"no": "event"}),
    ),
    max_size=40,
)


def naive(messages: list[Any]) -> dict[tuple[str, str], Any]:
    kept: list[Any] = []
    for message in messages:
        if message.get("headers") == {"control": "reset"}:
            kept = []
        elif "type" in message:
            kept.append(message)
    return fold(kept)


def with_keys(state: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """As a database has it: objects have their primary key."""
    return {
        (name, key): {**value, "id": key} if isinstance(value, dict) else value for (name, key), value in state.items()
    }


@given(EVENTS_OF_ALL_KINDS, st.lists(st.integers(1, 7), min_size=1, max_size=10), st.lists(st.booleans(), max_size=40))
def test_restarts_at_any_point_give_the_naive_fold(messages: list[Any], sizes: list[int], restarts: list[bool]) -> None:
    """Batches of any size, some ending between offsets (every third message); a restart after any of them.

    What is between offsets is not shown before the next one, and not in a checkpoint.
    """
    messages = messages[: len(messages) - len(messages) % 3]
    one = following(on_bad_event="skip")
    one.begin(None)
    position, turn = 0, 0
    while position < len(messages):
        end = min(len(messages), position + sizes[turn % len(sizes)])
        items = EVENTS.decode_array(msgspec.json.encode(messages[position:end]))
        one.apply(Batch(items, Position(str(end - end % 3), end % 3)))
        position = end
        visible = one.position.offset
        assert contents(one) == with_keys(naive(messages[: int(visible) if visible != "-1" else 0]))
        if turn < len(restarts) and restarts[turn]:
            checkpoint = one.checkpoint()
            one = following(on_bad_event="skip")
            one.begin(decode_checkpoint(checkpoint[0], URL, DEFINITION) if checkpoint is not None else None)
            position = int(one.position.offset) if checkpoint is not None else 0
            assert one.position.skip == 0
        turn += 1
    assert contents(one) == with_keys(naive(messages))


def test_a_bad_event_leaves_the_state_as_it_was_and_says_where_it_is() -> None:
    one = following(on_bad_event="raise")
    good = {"type": "user", "key": "1", "value": 1, "headers": {"operation": "insert"}}
    items = EVENTS.decode_array(msgspec.json.encode([good, good, {"bad": 1}, good]))
    one.begin(Start(Position("7", 2)))
    with pytest.raises(InvalidEventError) as refused:
        one.apply(Batch(items, Position("9")))
    assert one.position == Position("7", 2)
    assert refused.value.position == Position("7", 4)
    assert contents(one) == {}
    one.apply(Batch(items[:2], Position("7", 4)))
    with pytest.raises(InvalidEventError) as refused:
        one.apply(Batch(items[2:], Position("9")))
    assert refused.value.position == Position("7", 4)


def test_a_checkpoint_is_refused_if_it_is_not_ours() -> None:
    start = Start(Position("5", 1), {"users": {"1": b'{"n": 1}'}, "orders": {}}, ["t"])
    data = encode_checkpoint(URL, DEFINITION, start)
    assert decode_checkpoint(data, URL, DEFINITION) == start
    saved = msgspec.msgpack.decode(data[data.index(b"\n") + 5 :])
    assert (saved["offset"], saved["skip"]) == ("5", 1)  # files of earlier versions stay readable
    for wrong in (data[:-1], data[:-1] + b"x", b"", b"nonsense", data.replace(b"checkpoint 1", b"checkpoint 9")):
        with pytest.raises(ValueError, match=r"damaged|checkpoint"):
            decode_checkpoint(wrong, URL, DEFINITION)
    with pytest.raises(ValueError, match="it is of http"):
        decode_checkpoint(data, URL + "2", DEFINITION)
    orders = DEFINITION["orders"]
    others = (
        {"users": Collection("user", dict[str, str]), "orders": orders},
        {"users": Collection("member", Any), "orders": orders},
        {"users": DEFINITION["users"]},
    )
    for other in others:
        with pytest.raises(ValueError, match="other collections or schemas"):
            decode_checkpoint(data, URL, define_state(other))


class Narrow(msgspec.Struct):
    id: str


class Wide(msgspec.Struct):
    id: str
    email: str = ""


class Aliased(pydantic.BaseModel):
    id: str
    n: str = pydantic.Field(default="", alias="fullName")


def cents(value: Any) -> Any:
    return {**value, "price": value["price"] * 100}


def schema_name(schema: Any) -> str:
    return str(getattr(schema, "__name__", "json schema"))


@pytest.mark.parametrize("schema", [Narrow, Wide, Aliased, cents, {"type": "object"}], ids=schema_name)
def test_a_restart_gives_what_the_stream_gives_whatever_the_schema_makes_of_it(schema: Any) -> None:
    definition = define_state({"users": Collection("user", schema)})
    settings = settings_of(True, "a file", 30.0, True, None)

    def made() -> Following:
        return Following(URL, definition, settings, database_of(definition, "raise", 5))

    value = {"id": "1", "email": "a@x", "fullName": "Ann", "price": 2}
    message = {"type": "user", "key": "1", "value": value, "headers": {"operation": "insert"}}
    first = made()
    first.apply(Batch(EVENTS.decode_array(msgspec.json.encode([message])), Position("1")))
    second = made()
    checkpoint = first.checkpoint()
    assert checkpoint is not None
    second.begin(decode_checkpoint(checkpoint[0], URL, definition))
    assert second.database.tables["users"].rows() == first.database.tables["users"].rows()


def test_fingerprints_tell_schemas_apart_and_stay_the_same() -> None:
    schemas: list[Any] = [Narrow, Wide, Aliased, cents, lambda value: value, {"type": "object"}, {"type": "array"}, int]
    assert len({Collection("x", schema).fingerprint for schema in schemas}) == len(schemas)
    for schema in schemas:
        assert Collection("x", schema).fingerprint == Collection("x", schema).fingerprint


def test_a_snapshot_that_never_ends_does_not_turn_checkpoints_off() -> None:
    one = following()
    good = {"type": "user", "key": "1", "value": 1, "headers": {"operation": "insert"}}
    events = msgspec.json.encode([{"headers": {"control": "snapshot-start"}}, good])
    one.apply(Batch(EVENTS.decode_array(events), Position("1")))
    checkpoint = one.checkpoint()
    assert checkpoint is not None
    other = following()
    other.begin(decode_checkpoint(checkpoint[0], URL, DEFINITION))
    assert contents(other) == contents(one) == {("user", "1"): 1}


def test_an_append_is_shown_whole_however_it_arrives() -> None:
    one = following()
    seen: list[int] = []
    batches: list[int] = []
    good = [{"type": "user", "key": key, "value": 1, "headers": {"operation": "insert"}} for key in "abc"]
    items = EVENTS.decode_array(msgspec.json.encode(good))
    one.apply(Batch(items[:1], Position("1", 1)))
    one.database.on_change(lambda change: seen.append(len(one.database.tables["users"])))
    one.database.on_batch(lambda changes: batches.append(len(changes)))
    one.apply(Batch(items[1:2], Position("1", 2)))
    assert (contents(one), one.position.offset, seen, batches, one.checkpoint()) == ({}, "-1", [], [], None)
    one.apply(Batch(items[2:], Position("2")))
    assert len(contents(one)) == 3
    assert one.position.offset == "2"
    assert (seen, batches) == ([3, 3, 3], [3])
    one.apply(Batch(items[:1], Position("2", 1)))
    one.begin(None)  # what was staged before it is not of this stream
    one.apply(Batch(items[1:2], Position("1")))
    assert list(contents(one)) == [("user", "b")]


def test_a_refused_checkpoint_does_not_count_as_saved() -> None:
    one = following()
    one.saved_at = Position("1")
    one.begin(None)
    good = {"type": "user", "key": "1", "value": 1, "headers": {"operation": "insert"}}
    one.apply(Batch(EVENTS.decode_array(msgspec.json.encode([good])), Position("1")))
    assert one.checkpoint() is not None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "state"
    assert load(path) is None
    save(path, b"one")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(path, b"two")
    assert load(path) == b"one"
    assert list(path.parent.iterdir()) == [path]


def test_the_newest_closed_snapshot_comes_first() -> None:
    def info(path: str, closed: bool) -> StreamInfo:
        return StreamInfo(path=path, content_type="application/json", tail_offset="x", closed=closed)

    infos = [
        info("s.snapshots/1", True),
        info("s.snapshots/3", False),
        info("s.snapshots/2", True),
        info("s.snapshots/4/x", True),
    ]
    assert newest_first(infos, "s") == [("s.snapshots/2", "2"), ("s.snapshots/1", "1")]


def _fold(*events: Any) -> dict[str, dict[str, bytes]] | None:
    snapshot = SnapshotFold()
    snapshot.apply(EVENTS.decode_array(msgspec.json.encode(events)))
    return snapshot.texts(DEFINITION)


def test_a_snapshot_counts_if_it_is_whole() -> None:
    state = RawState()
    state.texts = {"user": {"1": b'{"n": 1}', "2": b"5"}, "order": {"x": b'"y"'}, "unknown": {"1": b"1"}}
    events = list(state.events("9"))
    texts = {"users": state.texts["user"], "orders": state.texts["order"]}
    assert _fold(*events) == texts
    assert _fold(*events[:3], *events) == texts  # begun twice: the last one counts
    assert _fold(*events[:-1]) is None
    assert _fold(*events[1:]) is None
    assert _fold(*events, events[1]) is None
    assert _fold() is None
    assert _fold(control_event("snapshot-start"), {"no": "event"}, control_event("snapshot-end")) is None


@given(EVENTS_OF_ALL_KINDS)
def test_the_raw_state_is_the_naive_fold_too(messages: list[Any]) -> None:
    state = RawState()
    state.apply(EVENTS.decode_array(msgspec.json.encode(messages)))
    values = {
        (name, key): msgspec.json.decode(text) for name, table in state.texts.items() for key, text in table.items()
    }
    assert values == naive(messages)
