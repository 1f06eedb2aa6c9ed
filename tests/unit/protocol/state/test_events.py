"""Events and the materialised state, with a test for every row of the specification's checklist."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidEventError
from headwater.state import (
    BadEvent,
    ChangeEvent,
    Collection,
    ControlEvent,
    EventDecoder,
    MaterializedState,
    control_event,
    decode_events,
    define_state,
    is_change_event,
    is_control_event,
    parse_event,
)
from headwater.state.database import Database


def change(operation: str = "insert", key: str = "1", type: str = "user", **more: Any) -> dict[str, Any]:  # noqa: A002
    value = {} if operation == "delete" and "value" not in more else {"value": more.pop("value", {"n": 1})}
    return {"type": type, "key": key, **value, "headers": {"operation": operation, **more.pop("headers", {})}, **more}


def decoded(*messages: Any) -> list[Any]:
    return EventDecoder().decode_array(json.dumps(messages).encode())


CHANGES = st.builds(
    change,
    operation=st.sampled_from(["insert", "update", "upsert", "delete"]),
    key=st.sampled_from(["a", "b", "c", "é"]),
    type=st.sampled_from(["user", "order"]),
    value=st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def fold(messages: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """The state as a beginner would compute it."""
    state: dict[tuple[str, str], Any] = {}
    for message in messages:
        where = (message["type"], message["key"])
        if message["headers"]["operation"] == "delete":
            state.pop(where, None)
        else:
            state[where] = message["value"]
    return state


def contents(state: MaterializedState) -> dict[tuple[str, str], Any]:
    return {(name, key): value for name in state.types for key, value in state.get_type(name).items()}


@given(st.lists(CHANGES, max_size=40), st.integers(1, 10))
def test_any_sequence_in_any_batching_is_the_naive_fold(messages: list[dict[str, Any]], size: int) -> None:
    events = [parse_event(message) for message in messages]
    batched, one_by_one = MaterializedState(), MaterializedState()
    for at in range(0, len(events), size):
        batched.apply_batch(events[at : at + size])  # type: ignore[arg-type]
    for event in events:
        one_by_one.apply(event)  # type: ignore[arg-type]
    assert contents(batched) == contents(one_by_one) == fold(messages)
    for (name, key), value in fold(messages).items():
        assert batched.get(name, key) == value


# The producer's checklist


def test_producer_events_are_appended_in_a_well_defined_order() -> None:
    """A transaction's events keep the order in which they were made; the stream keeps it from there."""
    users = Collection("user", dict, key="id")
    database = Database(define_state({"users": users}), txids_kept=5)
    transaction = database.begin("t")
    for number in range(5):
        transaction["users"].insert({"id": number})
    assert [event.key for event in transaction.events] == ["0", "1", "2", "3", "4"]


def test_producer_each_change_event_includes_type_key_value_and_operation() -> None:
    users = Collection("user", dict, key="id")
    for event in (users.insert({"id": 7}), users.update({"id": 7}), users.upsert({"id": 7})):
        sent = json.loads(msgspec.json.encode(event))
        assert sent == {
            "type": "user",
            "key": "7",
            "value": {"id": 7},
            "headers": {"operation": event.headers.operation},
        }


def test_producer_delete_operations_may_omit_the_value() -> None:
    sent = json.loads(msgspec.json.encode(Collection("user", dict).delete("7")))
    assert sent == {"type": "user", "key": "7", "headers": {"operation": "delete"}}
    state = MaterializedState()
    state.apply_batch(decode_events(json.dumps([change(), change("delete", value=None)])))  # type: ignore[arg-type]
    assert state.get("user", "1") is None


def test_producer_control_events_use_headers_control_with_valid_kinds() -> None:
    for kind in ("snapshot-start", "snapshot-end", "up-to-date", "reset"):
        assert json.loads(msgspec.json.encode(control_event(kind))) == {"headers": {"control": kind}}
    with pytest.raises(InvalidEventError, match="pause"):
        control_event("pause")  # type: ignore[arg-type]


def test_producer_timestamps_are_advisory_only() -> None:
    later, earlier = {"timestamp": "2030-01-01T00:00:00Z"}, {"timestamp": "1999-01-01T00:00:00Z"}
    state = MaterializedState()
    for headers, value in ((later, 1), (earlier, 2), ({"timestamp": 17}, 3)):
        state.apply(parse_event(change(value=value, headers=headers)))  # type: ignore[arg-type]
    assert state.get("user", "1") == 3


# The consumer's checklist


def test_consumer_events_are_processed_in_stream_order() -> None:
    state = MaterializedState()
    state.apply_batch(decode_events(json.dumps([change(value=n) for n in (3, 1, 2)])))  # type: ignore[arg-type]
    assert state.get("user", "1") == 2


def test_type_guards_take_what_a_read_yields() -> None:
    for message in (change(), change(headers={"operation": "delete"}), change(headers={"operation": "insert", "x": 1})):
        assert is_change_event(message)
        assert not is_control_event(message)
    assert is_control_event({"headers": {"control": "reset"}})
    others: Any = ({}, {"headers": {}}, {"headers": {"operation": "insert"}}, {"headers": 7}, [change()], "text", 7)
    for other in others:
        assert not is_change_event(other)
        assert not is_control_event(other)


def test_consumer_type_guards_distinguish_changes_and_controls() -> None:
    one, other, both, neither, nonsense = decoded(
        change(), {"headers": {"control": "reset"}}, change(headers={"control": "reset"}), {"headers": {}}, 7
    )
    assert is_change_event(one)
    assert not is_control_event(one)
    for control in (other, both):
        assert is_control_event(control)
        assert not is_change_event(control)
        assert control.headers.control == "reset"
    for bad in (neither, nonsense):
        assert isinstance(bad, BadEvent)
        assert not is_change_event(bad)
        assert not is_control_event(bad)


def test_consumer_materializer_applies_insert_update_delete_and_upsert() -> None:
    state = MaterializedState()
    for operation in ("update", "insert", "upsert"):  # an update of nothing and an insert of something set the value
        state.apply(parse_event(change(operation, value=operation)))  # type: ignore[arg-type]
        assert state.get("user", "1") == operation
    state.apply(parse_event(change("delete", value="ignored")))  # type: ignore[arg-type]
    state.apply(parse_event(change("delete", key="never there", type="nothing")))  # type: ignore[arg-type]
    assert state.get("user", "1", "gone") == "gone"
    assert (state.types, state.type_count) == ([], 0)


def test_consumer_old_value_is_not_used() -> None:
    state = MaterializedState()
    state.apply(parse_event(change("insert", value=1, old_value={"a": "lie"})))  # type: ignore[arg-type]
    state.apply(parse_event(change("update", value=2, old_value="another")))  # type: ignore[arg-type]
    assert state.get("user", "1") == 2


def test_consumer_control_events_are_handled(caplog: pytest.LogCaptureFixture) -> None:
    database = Database(define_state({"users": Collection("user", int)}), txids_kept=5)
    raw = EventDecoder(msgspec.Raw)

    def apply(*messages: Any) -> None:
        database.apply(raw.decode_array(json.dumps(messages).encode()))

    apply(change(value=1), {"headers": {"control": "up-to-date", "offset": "x"}})
    assert dict(database.tables["users"]) == {"1": 1}
    apply(change(value=2), {"headers": {"control": "reset"}}, change(key="2", value=3))
    assert dict(database.tables["users"]) == {"2": 3}
    with caplog.at_level(logging.WARNING):
        apply({"headers": {"control": "snapshot-end"}}, change(key="3", value=4))
    assert "never started" in caplog.text
    assert dict(database.tables["users"]) == {"2": 3, "3": 4}
    assert database.counts.controls == 3


@pytest.mark.parametrize("policy", ["raise", "skip", "callback"])
def test_consumer_schema_validation_does_not_corrupt_state_on_failure(policy: str) -> None:
    letters: list[BadEvent] = []
    database = Database(
        define_state({"users": Collection("user", int)}),
        on_bad_event=letters.append if policy == "callback" else policy,
        txids_kept=5,
    )
    bad = [change("update", value="text"), {"type": "user", "key": "1", "headers": {"operation": "update"}}, 7]
    messages = [change(value=1), *bad, change(key="2", value=2)]
    events = EventDecoder(msgspec.Raw).decode_array(json.dumps(messages).encode())
    if policy == "raise":
        with pytest.raises(InvalidEventError) as refused:
            database.apply(events)
        assert refused.value.skip == 1
        assert dict(database.tables["users"]) == {}  # nothing of what came with it
        return
    database.apply(events)
    assert dict(database.tables["users"]) == {"1": 1, "2": 2}
    assert database.counts.bad == 3
    assert [letter.message for letter in letters] == (bad if policy == "callback" else [])


# What is strict, what is tolerant


@pytest.mark.parametrize(
    "message",
    [
        change("replace"),
        {**change(), "key": 7},
        {**change(), "type": None},
        {"key": "1", "value": 1, "headers": {"operation": "insert"}},
        {"type": "user", "key": "1", "headers": {"operation": "insert"}},
        {"type": "user", "key": "1", "value": 1},
        {**change(), "type": ""},
        {**change(), "key": ""},
        change(headers={"txid": 7}),
        change(headers={"operation": []}),
        change(headers={"custom": 1, "txid": 7}),
        change(headers={"txid": None}),
        {"headers": {"control": 7}},
        {"headers": "reset"},
        [],
        "text",
        None,
    ],
)
def test_what_is_no_event_is_refused(message: Any) -> None:
    with pytest.raises(InvalidEventError):
        parse_event(message)
    with pytest.raises(InvalidEventError, match="event 1"):
        decode_events(json.dumps([change(), message]))


def test_what_may_be_there_is_tolerated() -> None:
    event = parse_event({**change(headers={"txid": "t", "from": "x"}), "more": 1})
    assert isinstance(event, ChangeEvent)
    assert event.headers.txid == "t"
    assert isinstance(parse_event({"headers": {"control": "reset", "offset": 7}}), ControlEvent)
    assert isinstance(parse_event({"headers": {"control": "pause"}}), ControlEvent)
    assert isinstance(parse_event(change("insert", value=None)), ChangeEvent)


def test_a_view_of_a_type_stays_current_and_cannot_be_written() -> None:
    state = MaterializedState()
    view = state.get_type("user")
    state.apply(parse_event(change(value=1)))  # type: ignore[arg-type]
    assert view == {"1": 1}
    with pytest.raises(TypeError):
        view["2"] = 1  # type: ignore[index]
    state.clear()
    assert view == {}
    assert state.type_count == 0


# Hostile messages

DEEP = "[" * 3_000 + "]" * 3_000
HOSTILE = ["1e999", "-1e999", "9" * 5_000, "NaN", "Infinity", '"\\ud800"', '{"\\udfff": 1}', DEEP, f'{{"a": {DEEP}}}']
GOOD = '{"type":"user","key":"good","value":{"n":1},"headers":{"operation":"insert"}}'
DECODERS = {"plain": EventDecoder(), "raw": EventDecoder(msgspec.Raw)}


def among_good_ones(message: str, decoder: str) -> Any:
    first, event, last = DECODERS[decoder].decode_array(f"[{GOOD},{message},{GOOD}]".encode())
    assert is_change_event(first)
    assert is_change_event(last)
    assert (first.key, last.key) == ("good", "good")
    return event


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
@pytest.mark.parametrize(
    "message",
    [
        '{"type":"user","key":"1","value":1,"old_value":%s,"headers":{"operation":"update"}}',
        '{"type":"user","key":"1","value":1,"headers":{"operation":"update","timestamp":%s}}',
        '{"type":"user","key":"1","value":%s,"headers":{"operation":"delete"}}',
        '{"type":"user","key":"1","value":1,"headers":{"operation":"update","custom":%s}}',
        '{"type":"user","key":"1","value":1,"headers":{"operation":"update"},"else":%s}',
        '{"headers":{"control":"reset","offset":%s}}',
        '{"type":%s,"key":7,"headers":{"control":"reset","operation":"insert"}}',
    ],
)
def test_advisory_fields_never_matter(message: str, text: str, decoder: str) -> None:
    event = among_good_ones(message % text, decoder)
    if is_change_event(event):
        assert (event.type, event.key) == ("user", "1")
        assert event.headers.operation in ("update", "delete")
    else:
        assert is_control_event(event)
        assert event.headers.control == "reset"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
@pytest.mark.parametrize(
    "message",
    [
        "%s",
        '{"type":%s,"key":"1","value":1,"headers":{"operation":"update"}}',
        '{"type":"user","key":%s,"value":1,"headers":{"operation":"update"}}',
        '{"type":"user","key":"1","value":1,"headers":%s}',
        '{"type":"user","key":"1","value":1,"headers":{"operation":%s}}',
        '{"type":"user","key":"1","value":1,"headers":{"operation":"update","txid":%s}}',
    ],
)
def test_whatever_a_message_holds_it_is_a_bad_event_at_most(message: str, text: str, decoder: str) -> None:
    event = among_good_ones(message % text, decoder)
    assert isinstance(event, BadEvent)
    assert event.reason


@pytest.mark.parametrize("policy", ["log", "skip"])
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_a_hostile_value_is_one_bad_event_of_a_database(
    text: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(define_state({"users": Collection("user", Any)}), on_bad_event=policy, txids_kept=5)
    hostile = f'{{"type":"user","key":"1","value":{text},"headers":{{"operation":"insert"}}}}'
    database.apply(DECODERS["raw"].decode_array(f"[{GOOD},{hostile},{GOOD}]".encode()))
    assert dict(database.tables["users"]) == {"good": {"n": 1, "id": "good"}}
    assert database.counts.bad == 1
    assert ("1 bad events were left out" in caplog.text) == (policy == "log")


def test_an_array_that_is_cut_short_is_not_taken_for_bad_events() -> None:
    for text in (f"[{GOOD},", f"[{GOOD}", f"[{GOOD},{GOOD[:-1]}]", "", "7", f"{GOOD}]"):
        with pytest.raises(ValueError, match=r"JSON|array|data"):
            EventDecoder().decode_array(text.encode())


def test_unknown_controls_are_ignored_by_a_database() -> None:
    database = Database(define_state({"users": Collection("user", int)}), on_bad_event="raise", txids_kept=5)
    events = [change(value=1), {"headers": {"control": "pause"}}, change(key="2", value=2)]
    database.apply(DECODERS["raw"].decode_array(json.dumps(events).encode()))
    assert dict(database.tables["users"]) == {"1": 1, "2": 2}
    assert (database.counts.ignored, database.counts.bad) == (1, 0)


def test_custom_headers_are_kept_and_written_as_they_were() -> None:
    message = change(headers={"from": "shop", "trace": {"id": 7}, "txid": "t"})
    for event in (*decoded(message), parse_event(message)):
        assert event.headers.custom == {"from": "shop", "trace": {"id": 7}}
        assert (event.headers.operation, event.headers.txid) == ("insert", "t")
        assert json.loads(msgspec.json.encode(event)) == message
    assert decoded(change())[0].headers.custom == {}
    made = Collection("user", dict).insert({"id": "1"}, txid="t", headers={"from": "shop"})
    assert json.loads(msgspec.json.encode(made))["headers"] == {"operation": "insert", "txid": "t", "from": "shop"}


def test_bad_events_name_their_type_and_key() -> None:
    deep = b'[{"type":"item","key":"a","value":' + b"[" * 5000 + b"]" * 5000 + b',"headers":{}}]'
    [event] = EventDecoder().decode_array(deep)
    assert isinstance(event, BadEvent)
    assert (event.type, event.key) == ("item", "a")
    [event] = EventDecoder().decode_array(b'[{"type":7,"key":"","headers":{}}]')
    assert isinstance(event, BadEvent)
    assert (event.type, event.key) == (None, None)
    assert BadEvent(3, "not an object").type is None
