"""State events as changes of a table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.log.json_framing import stored
from headwater.protocol.state.as_changes import EventsAsChanges
from headwater.protocol.state.batches import ConvertedBatch
from headwater.protocol.tables.changes import parse_changes
from headwater.protocol.tables.escaping import Escape, unescape


def event(key: str = "k", value: Any = 1, operation: str = "insert", kind: str = "price", **more: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "key": key, "value": value, "headers": {"operation": operation}, **more})


RESET = b'{"headers":{"control":"reset"}}'


def converted(*messages: bytes, escape: Escape = Escape.NONE, skip: int = 0) -> list[ConvertedBatch]:
    data = stored(b"[" + b",".join(messages) + b"]", 10**6)
    return list(EventsAsChanges("price", escape).convert(data, skip))


def only(*messages: bytes, escape: Escape = Escape.NONE) -> ConvertedBatch:
    (batch,) = converted(*messages, escape=escape)
    assert batch.last
    assert batch.taken == len(messages)
    return batch


def test_each_operation() -> None:
    batch = only(
        event("a", {"eur": 1.2}),
        event("b", None, "update"),
        event("c", "x y", "upsert"),
        event("a", 5, "delete"),
        b'{"type":"price","key":"b","headers":{"operation":"delete"}}',
        event("d", kind="stock"),
    )
    assert batch.records == [b'+\ta\t{"eur":1.2}', b"+\tb\tnull", b'+\tc\t"x y"', b"-\ta\t", b"-\tb\t"]
    assert batch.skipped == 0


def test_values_are_made_compact_and_never_decoded() -> None:
    value = b'{ "a" : [ 1e999 , 0.10 ,\n\t 123456789012345678901234567890 ], "t" : "a \\t b \x7f" }'
    (record,) = only(b'{"type":"price","key":"k","value":' + value + b',"headers":{"operation":"insert"}}').records
    assert record == b'+\tk\t{"a":[1e999,0.10,123456789012345678901234567890],"t":"a \\t b \\u007f"}'


def test_advisory_fields_are_ignored() -> None:
    messages = (
        b'{"type":"price","key":"k","value":1,"old_value":1e999,'
        b'"headers":{"operation":"insert","timestamp":1e999,"by":1e999}}',
        b'{"type":"price","key":"k","value":1e999,"headers":{"operation":"delete","timestamp":null}}',
    )
    assert only(*messages).records == [b"+\tk\t1", b"-\tk\t"]
    assert only(*messages, b"7").skipped == 1  # one by one as well


def test_controls_other_than_reset_are_ignored() -> None:
    controls = [
        b'{"headers":{"control":"%b"}}' % name for name in (b"up-to-date", b"snapshot-start", b"snapshot-end", b"new")
    ]
    batch = only(event(), *controls, event(operation="delete"))
    assert batch.records == [b"+\tk\t1", b"-\tk\t"]
    assert batch.skipped == 0


def test_a_reset_ends_a_batch() -> None:
    first, second, last = converted(event("a"), RESET, event("b"), b'{"headers":{"control":"\\u0072eset"}}')
    assert (first.records, first.taken, first.reset, first.last) == ([b"+\ta\t1"], 2, True, False)
    assert (second.records, second.taken, second.reset, second.last) == ([b"+\tb\t1"], 4, True, False)
    assert (last.records, last.taken, last.reset, last.last) == ([], 4, False, True)


def test_an_event_with_a_control_is_a_control_despite_other_fields() -> None:
    both = b'{"type":"price","key":"k","value":1,"headers":{"control":"%b","operation":"insert"}}'
    batch = only(event("a"), both % b"pause", event("b"))
    assert (batch.records, batch.skipped) == ([b"+\ta\t1", b"+\tb\t1"], 0)
    first, *_ = converted(event("a"), both % b"reset", event("b"))
    assert (first.records, first.reset) == ([b"+\ta\t1"], True)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"7", "not a state event"),
        (b"null", "not a state event"),
        (b"[]", "not a state event"),
        (b"{}", "not a state event"),
        (b'{"headers":{}}', "no operation"),
        (event(kind=""), "type: Expected `str` of length >= 1"),
        (event(key=""), "key: Expected `str` of length >= 1"),
        (b'{"type":"price","value":1,"headers":{"operation":"insert"}}', "no key"),
        (b'{"type":"price","key":7,"value":1,"headers":{"operation":"insert"}}', "key: Expected `str`"),
        (b'{"type":"price","key":"k","value":1,"headers":{"operation":"insert","txid":[]}}', "txid: Expected `str`"),
        (b'{"type":"price","key":"k","headers":{"operation":"upsert"}}', "upsert without a value"),
        (event(operation="replace"), "operation"),
        (b'{"type":"price","key":"k","value":1,"headers":{"operation":1}}', "operation: Expected `str`"),
        (b'{"type":"price","key":"k","value":1,"headers":{}}', "operation"),
        (event(key="a\tb"), "control character"),
        (event(key="a\nb"), "control character"),
        (event(key="a\x7f"), "control character"),
        (event(key="k" * (limits.KEY_BYTES_MAX + 1)), "more than 1024 bytes"),
        (event(value="x" * limits.CHANGE_BYTES_MAX), "key and value"),
    ],
)
def test_invalid_messages_are_counted_and_left_out(message: bytes, reason: str) -> None:
    batch = only(event("a"), message, event("b"))
    assert batch.records == [b"+\ta\t1", b"+\tb\t1"]
    assert batch.skipped == 1
    assert reason in str(batch.reason)


def test_a_value_that_is_nested_too_deeply_for_the_parser_is_left_out() -> None:
    deep = b'{"type":"price","key":"k","value":%b1 %b,"headers":{"operation":"insert"}}' % (b"[" * 9000, b"]" * 9000)
    data = b",".join([event("a"), deep, event("b", "x, y"), b""])
    (batch,) = EventsAsChanges("price", Escape.NONE).convert(data, 0)
    assert batch.records == [b"+\ta\t1", b'+\tb\t"x, y"']
    assert (batch.skipped, batch.taken) == (1, 3)


def test_a_table_with_escapes_accepts_keys_with_tabs_and_newlines() -> None:
    batch = only(event("a\tb\n\\", "c\\d\te"), event("\x00"), escape=Escape.BACKSLASH)
    (record,) = batch.records
    assert record == rb"+" b"\t" rb"a\tb\n\\" b"\t" rb'"c\\\\d\\te"'
    assert unescape(record.split(b"\t")[2].decode()) == r'"c\\d\te"'
    assert batch.skipped == 1


def test_many_messages_become_several_batches() -> None:
    messages = [event(f"k{number}", "x" * 50) for number in range(25_000)]
    batches = converted(*messages)
    assert [record.split(b"\t")[1] for batch in batches for record in batch.records] == [
        b"k%d" % number for number in range(25_000)
    ]
    assert all(len(batch.records) <= limits.VIEW_BATCH_RECORDS for batch in batches)
    assert all(batch.size_bytes < limits.VIEW_BATCH_BYTES + 100 for batch in batches)
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]


KEYS = st.sampled_from(["a", "b", "ключ", "x y", "t\tb"]) | st.text(max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.lists(
    st.builds(
        event, KEYS, VALUES, st.sampled_from(["insert", "update", "upsert", "delete"]), st.sampled_from(["price", "p"])
    )
    | st.just(RESET)
    | st.builds(lambda value: msgspec.json.format(msgspec.json.encode(value)), VALUES),
    max_size=20,
)


@given(MESSAGES, st.sampled_from(Escape), st.integers(0, 30))
def test_the_changes_of_any_events_are_valid_and_fold_to_the_same_state(
    messages: list[bytes], escape: Escape, skip: int
) -> None:
    if not messages:
        return
    data = stored(b"[" + b",".join(messages) + b"]", 1000)
    skip = min(skip, len(messages))
    live: dict[str, Any] = {}
    for batch in EventsAsChanges("price", escape).convert(data, skip):
        if batch.records:
            changes = parse_changes(b"\n".join(batch.records), 1000, escape)
            assert changes.lines == batch.records
        for action, key, record in (line.decode().split("\t") for line in batch.records):
            plain = (lambda text: text) if escape is Escape.NONE else unescape
            live.pop(plain(key), None)
            if action == "+":
                live[plain(key)] = msgspec.json.decode(plain(record))
        if batch.reset:
            live.clear()
    assert batch.taken == len(messages)
    assert live == naive([msgspec.json.decode(message) for message in messages[skip:]], escape)


def naive(messages: list[Any], escape: Escape) -> dict[str, Any]:
    state: dict[str, Any] = {}
    held = [chr(code) for code in (*range(32), 127) if escape is Escape.NONE or chr(code) not in "\t\n\r"]
    for message in messages:
        if not isinstance(message, dict) or "headers" not in message:
            continue
        if message["headers"].get("control") == "reset":
            state.clear()
        elif message.get("type") == "price" and message["key"] and not any(c in message["key"] for c in held):
            state.pop(message["key"], None)
            if message["headers"]["operation"] != "delete":
                state[message["key"]] = message["value"]
    return state
