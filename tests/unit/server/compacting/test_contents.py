"""The contents of snapshots: they lead to the same state as the bytes that they replace."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from headwater.server.compacting.contents import ContentSize, SnapshotContent, StateContent, TableContent, open_database

DAY_MS = 86_400_000
MEMORY_BYTES = 1024**2


def snapshot_of(pieces: list[bytes], record_bytes: int = 100) -> list[Any]:
    """The messages of the snapshot of a state stream."""
    content = StateContent(open_database(MEMORY_BYTES), "0001790000000000_0000000000000009")
    records = written(content, pieces, record_bytes)
    return [message for record in records for message in json.loads(record)]


def written(content: SnapshotContent, pieces: list[bytes], record_bytes: int) -> list[bytes]:
    for piece in pieces:
        content.add(piece)
    size = content.finish()
    records = list(content.records(record_bytes))
    stored = sum(map(len, records)) - (len(records) if isinstance(content, StateContent) else 0)
    assert stored == size.size_bytes  # without brackets, with a comma after each message
    return records


def stored(*messages: Any) -> bytes:
    return b"".join(json.dumps(message).encode() + b"," for message in messages)


def change(operation: str, key: str, value: Any = None, type_: str = "user", **headers: Any) -> dict[str, Any]:
    event = {"type": type_, "key": key, "headers": {"operation": operation, **headers}}
    return event if operation == "delete" else {**event, "value": value}


def control(kind: str) -> dict[str, Any]:
    return {"headers": {"control": kind}}


def live(messages: list[Any]) -> list[tuple[str, str, Any]]:
    """The entities between the markers, in order."""
    kinds = [message["headers"].get("control") for message in messages if "headers" in message]
    assert (kinds.count("snapshot-start"), kinds.count("snapshot-end")) == (1, 1)
    start = next(at for at, one in enumerate(messages) if one.get("headers", {}).get("control") == "snapshot-start")
    inserts = messages[start + 1 : -1]
    assert {one["headers"]["operation"] for one in inserts} <= {"insert"}
    return [(one["type"], one["key"], one["value"]) for one in inserts]


def replayed(messages: list[Any]) -> list[tuple[str, str, Any]]:
    """What a consumer has after these messages, in order of insertion."""
    state: dict[tuple[str, str], Any] = {}
    for message in messages:
        headers = message.get("headers", {})
        if headers.get("control") == "reset":
            state = {}
        elif headers.get("operation") == "delete":
            state.pop((message["type"], message["key"]), None)
        elif "operation" in headers:
            state[message["type"], message["key"]] = message["value"]
    return [(*entity, value) for entity, value in state.items()]


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_leads_to_the_state_of_the_messages_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    messages: list[Any] = []
    for number in range(rng.randrange(400)):
        key, kind = f"k{rng.randrange(12)}", rng.choice(["user", "Übung \0"])
        operation = rng.choice(["insert", "update", "upsert", "delete"])
        messages.append(change(operation, key, {"n": number, "t": "ä\n"}, kind))
        if rng.random() < 0.01:
            messages.append(control("reset"))
        if rng.random() < 0.02:
            messages.append(control(rng.choice(["snapshot-start", "snapshot-end", "up-to-date"])))
    pieces, at = [], 0
    while at < len(messages):
        end = at + rng.randrange(1, 80)
        pieces.append(stored(*messages[at:end]))
        at = end
    snapshot = snapshot_of(pieces, rng.choice([1, 100, 100_000]))
    assert live(snapshot) == replayed(messages)
    # A later snapshot is made from this one.
    more = [change("delete", "k1"), change("insert", "k1", 1), change("upsert", "new", 2)]
    again = snapshot_of([stored(*snapshot), stored(*more)])
    assert live(again) == replayed(messages + more)


def test_values_and_headers_stay_as_they_are_written() -> None:
    text = (
        b'{"type":"a","key":"1","value":{"big":12345678901234567890123,"f":1.0e5} ,"headers":{"operation":"update",'
        b'"timestamp":1.50,"txid":"t7","from":{"n": 1}},"old_value":3},'
        b'{"type":"a","key":"2","value":null,"headers":{"operation":"upsert"}},'
    )
    content = StateContent(open_database(MEMORY_BYTES), "-1")
    records = written(content, [text], 1)
    assert records[1] == (
        b'[{"type":"a","key":"1","value":{"big":12345678901234567890123,"f":1.0e5},"headers":{"operation":"insert",'
        b'"timestamp":1.50,"txid":"t7","from":{"n": 1}}}]'
    )
    assert records[2] == b'[{"type":"a","key":"2","value":null,"headers":{"operation":"insert"}}]'


def test_what_is_no_state_event_is_kept_word_for_word_before_the_snapshot() -> None:
    kept = [
        b'{"hello":"world" }',
        b"17",
        b'{"headers":{"control":"of-mine","x":1}}',
        b'{"headers":{"operation":"insert"}}',
    ]
    pieces = [kept[0] + b"," + stored(change("insert", "a", 1)), b"".join(one + b"," for one in kept[1:])]
    content = StateContent(open_database(MEMORY_BYTES), "-1")
    records = written(content, pieces, 1)
    assert [record[1:-1] for record in records[:4]] == kept
    assert b"snapshot-start" in records[4]
    again = written(StateContent(open_database(MEMORY_BYTES), "-1"), [record[1:-1] + b"," for record in records], 1)
    assert again == records


# Tables


def rows(*changes: tuple[int, str, str, str]) -> bytes:
    return b"".join(f"{seqno}\t{at}\t{action}\t{key}\t{seqno}\n".encode() for seqno, at, action, key in changes)


OLD, NEW = "2026-01-08T00:00:00.000Z", "2026-01-09T12:00:00.000Z"
NOW_MS = 1_767_960_000_000  # 2026-01-09T12:00:00Z


def table_content(pieces: list[bytes], complete_since: int = 0) -> tuple[bytes, ContentSize]:
    content = TableContent(open_database(MEMORY_BYTES), NOW_MS - DAY_MS, complete_since)
    for piece in pieces:
        content.add(piece)
    size = content.finish()
    data = b"".join(content.records(30))
    assert size.size_bytes == len(data)
    return data, size


def test_a_table_keeps_the_last_row_of_each_key_and_young_deletions() -> None:
    first = rows((1, OLD, "+", "a"), (2, OLD, "+", "b"), (3, OLD, "-", "a"), (4, OLD, "+", "c"), (5, OLD, "-", "d"))
    second = rows((6, NEW, "-", "c"), (7, NEW, "+", "b"), (8, NEW, "+", "d"), (9, NEW, "+", "e"))
    data, size = table_content([first, second])
    assert data == rows((6, NEW, "-", "c"), (7, NEW, "+", "b"), (8, NEW, "+", "d"), (9, NEW, "+", "e"))
    assert size.complete_since == 3  # row 3 was a deletion that is missing; 5 was undone by 8
    assert table_content([first, second], complete_since=4)[1].complete_since == 4
    assert table_content([data])[1].complete_since == 0


def test_a_table_still_ends_with_its_last_row() -> None:
    data, size = table_content([rows((1, OLD, "+", "a"), (2, OLD, "-", "a"))])
    assert data == rows((2, OLD, "-", "a"))
    assert size.complete_since == 0


def test_deletions_of_a_mirror_may_have_any_time() -> None:
    pieces = [rows((10, "yesterday", "-", "a"), (20, "2026-01-01T00:00:00+01:00", "-", "b"), (30, "x", "+", "c"))]
    data, size = table_content(pieces)
    assert data == rows((10, "yesterday", "-", "a"), (30, "x", "+", "c"))
    assert size.complete_since == 20
