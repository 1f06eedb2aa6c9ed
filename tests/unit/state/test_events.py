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
    key=st.sampled_from(["a", "b", "c", ""]),
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
        transaction.users.insert({"id": number})
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
        assert json.loads(msgspec.json.encode(control_event(kind))) == {"headers": {"control": kind}}  # type: ignore[arg-type]
    assert isinstance(decoded({"headers": {"control": "pause"}})[0], BadEvent)


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


def test_consumer_type_guards_distinguish_changes_and_controls() -> None:
    one, other, both, neither, nonsense = decoded(
        change(), {"headers": {"control": "reset"}}, change(headers={"control": "reset"}), {"headers": {}}, 7
    )
    assert is_change_event(one)
    assert not is_control_event(one)
    assert is_control_event(other)
    assert not is_change_event(other)
    for bad in (both, neither, nonsense):
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
        assert dict(database.tables["users"]) == {"1": 1}
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
        {"headers": {"control": "pause"}},
        {"headers": {"control": "reset", "operation": "insert"}},
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
