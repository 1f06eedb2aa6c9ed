"""The consumers of state events agree on which events are valid: a StreamDB, Spark's `stream-state` and a view.

The deliberate differences are in `DIFFERENCES`. They concern what a consumer does with a valid event: a StreamDB
decodes values, and a row of a table has limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from headwater import limits
from headwater.log.json_framing import stored
from headwater.protocol.state.as_changes import EventsAsChanges
from headwater.protocol.tables.escaping import Escape
from headwater.spark.columns import STATE_COLUMNS
from headwater.spark.decoding import Events
from headwater.spark.options import StateReadOptions
from headwater.state import Collection, define_state
from headwater.state.database import Database
from headwater.state.following import EVENTS

# What a consumer has after it applied messages: the values of keys as JSON, and how many messages were invalid.
State = tuple[dict[str, bytes], int]

COLUMNS = StructType([StructField(name, StringType()) for name in STATE_COLUMNS])


def stream_db(messages: list[bytes]) -> State:
    database = Database(
        define_state({"prices": Collection("price", Any, key="any")}), on_bad_event="skip", txids_kept=9
    )
    database.apply(EVENTS.decode_array(b"[%b]" % b",".join(messages)))
    rows = database.tables["prices"].rows()
    return {key: msgspec.json.encode(value) for key, value in rows.items()}, database.counts.bad


def spark(messages: list[bytes]) -> State:
    rows = Events(COLUMNS, StateReadOptions(url="")).decode_array(b"[%b]" % b",".join(messages)).to_pylist()
    state: dict[str, bytes] = {}
    for row in rows:
        if row["bad"] is not None:
            continue
        if row["control"] == "reset":
            state.clear()
        elif row["type"] == "price":
            state.pop(row["key"], None)
            if row["operation"] != "delete":
                state[row["key"]] = _compact(row["value"].encode())
    return state, sum(row["bad"] is not None for row in rows)


def view(messages: list[bytes]) -> State:
    state: dict[str, bytes] = {}
    invalid = 0
    for batch in EventsAsChanges("price", Escape.NONE).convert(b",".join([*messages, b""]), 0):
        for record in batch.records:
            action, key, value = record.split(b"\t")
            state.pop(key.decode(), None)
            if action == b"+":
                state[key.decode()] = _compact(value)
        if batch.reset:
            state.clear()
        invalid += batch.skipped
    return state, invalid


def _compact(value: bytes) -> bytes:
    return msgspec.json.format(value, indent=-1)


CONSUMERS: list[Callable[[list[bytes]], State]] = [stream_db, spark, view]
CONSUMER_NAMES = ["StreamDB", "Spark", "view"]


def change(fields: bytes = b'"type":"price","key":"k","value":1', headers: bytes = b'"operation":"insert"') -> bytes:
    return b'{%b,"headers":{%b}}' % (fields, headers)


BEFORE = change(b'"type":"price","key":"a","value":"before"')
AFTER = change(b'"type":"price","key":"z","value":"after"')

VALID = [
    change(),
    change(headers=b'"operation":"update"'),
    change(headers=b'"operation":"upsert"'),
    change(headers=b'"operation":"delete"'),
    change(b'"type":"price","key":"k"', b'"operation":"delete"'),
    change(b'"type":"price","key":"a","value":1e999', b'"operation":"delete"'),
    change(b'"type":"price","key":"k","value":null'),
    change(b'"type":"price","key":"k","value":[1.5],"old_value":1e999'),
    change(b'"type":"price","key":"k","value":1,"other":[{}]'),
    change(b'"type":"price","key":"k","value":1,"value":2'),
    change(b'"type":"stock","key":"k","value":1'),
    change(headers=b'"operation":"insert","txid":"t"'),
    change(headers=b'"operation":"insert","txid":""'),
    change(headers=b'"operation":"insert","timestamp":7'),
    change(headers=b'"operation":"insert","timestamp":null'),
    change(headers=b'"operation":"insert","timestamp":1e999'),
    change(headers=b'"operation":"insert","by":"me","seqno":"7"'),
    change(headers=b'"operation":"insert","by":1e999'),
    change(headers=b'"operation":"insert","control":"pause"'),
    change(headers=b'"operation":"insert","control":"reset"'),
    b'{"headers":{"control":"reset"}}',
    b'{"headers":{"control":"snapshot-start","offset":7}}',
    b'{"headers":{"control":"unknown"}}',
]

INVALID = [
    b"7",
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b'{"headers":null}',
    b'{"headers":[]}',
    b'{"headers":{}}',
    b'{"headers":{"control":7}}',
    b'{"headers":{"control":null}}',
    change(b'"key":"k","value":1'),
    change(b'"type":"","key":"k","value":1'),
    change(b'"type":7,"key":"k","value":1'),
    change(b'"type":null,"key":"k","value":1'),
    change(b'"type":"price","value":1'),
    change(b'"type":"price","key":"","value":1'),
    change(b'"type":"price","key":7,"value":1'),
    change(b'"type":"price","key":null,"value":1'),
    change(b'"type":"price","key":"k"'),
    change(b'"type":"price","key":"k"', b'"operation":"update"'),
    change(b'"type":"price","key":"k"', b'"operation":"upsert"'),
    change(b'"type":"price","key":"k"', b'"operation":"upsert","by":"me"'),
    change(b'"type":"stock","key":"k"'),
    change(b'"type":"stock","key":"","value":1'),
    change(b'"type":"stock","key":"k","value":1', b'"operation":"replace"'),
    change(headers=b""),
    change(headers=b'"operation":"replace"'),
    change(headers=b'"operation":"Insert"'),
    change(headers=b'"operation":7'),
    change(headers=b'"operation":null'),
    change(headers=b'"operation":"insert","txid":7'),
    change(headers=b'"operation":"insert","txid":null'),
    change(headers=b'"operation":"insert","txid":[]'),
    change(headers=b'"operation":"insert","txid":7,"by":"me"'),
    change(b'"type":"price","key":"a"', b'"operation":"delete","txid":7'),
    change(b'"type":"price","key":"k","value":%b1%b' % (b"[" * 9000, b"]" * 9000)),
]


def test_all_consumers_apply_the_same_valid_events() -> None:
    for message in VALID:
        states = [consumer([BEFORE, message, AFTER]) for consumer in CONSUMERS]
        assert states == states[:1] * len(CONSUMERS), message
        assert states[0][1] == 0, message


def test_no_consumer_applies_an_invalid_event() -> None:
    for message in INVALID:
        for consumer, name in zip(CONSUMERS, CONSUMER_NAMES, strict=True):
            assert consumer([BEFORE, message, AFTER]) == ({"a": b'"before"', "z": b'"after"'}, 1), (name, message[:80])


ALL = st.lists(st.sampled_from([BEFORE, AFTER, *VALID, *INVALID[:-1]]), min_size=1, max_size=12)


@given(ALL)
def test_all_consumers_have_the_same_state_after_any_events(messages: list[bytes]) -> None:
    states = [consumer(messages) for consumer in CONSUMERS]
    assert states == states[:1] * len(CONSUMERS)


# Who applies these valid events, and why the others do not.
DIFFERENCES = {
    "a value that cannot be decoded: views and Spark keep the text of values": (
        change(b'"type":"price","key":"k","value":1e999'),
        {"Spark", "view"},
    ),
    "a control character in a key: no field of a row can have one": (
        change(b'"type":"price","key":"a\\u0009b","value":1'),
        {"StreamDB", "Spark"},
    ),
    "a key that is longer than a key of a row": (
        change(b'"type":"price","key":"%b","value":1' % (b"k" * (limits.KEY_BYTES_MAX + 1))),
        {"StreamDB", "Spark"},
    ),
    "a value that is longer than a row": (
        change(b'"type":"price","key":"k","value":"%b"' % (b"x" * limits.CHANGE_BYTES_MAX)),
        {"StreamDB", "Spark"},
    ),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_differences_are_deliberate(difference: str) -> None:
    message, appliers = DIFFERENCES[difference]
    for consumer, name in zip(CONSUMERS, CONSUMER_NAMES, strict=True):
        state, invalid = consumer([BEFORE, message, AFTER])
        assert (len(state), invalid) == ((3, 0) if name in appliers else (2, 1)), name


def test_the_events_of_this_test_are_messages_that_a_server_stores() -> None:
    for message in [BEFORE, AFTER, *VALID, *INVALID[:-1]]:
        assert stored(message if message[:1] != b"[" else b"[%b]" % message, 10) == message + b","
