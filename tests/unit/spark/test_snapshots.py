"""Batches that start with a snapshot have the same state as the whole stream."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headwater.client import Client, Stream
from headwater.errors import MessageError, OptionError
from headwater.protocol.state.events import EventDecoder
from headwater.spark.columns import STATE_COLUMNS
from headwater.spark.options import read_options
from headwater.spark.querying import TaskInput
from headwater.spark.sources import BatchReader
from headwater.state.bootstrap import RawState, snapshot_path
from tests.servers import Server

_numbers = itertools.count()
KINDS = {"STRING": StringType(), "BIGINT": LongType(), "TIMESTAMP_LTZ": TimestampType()}
ALL = StructType([StructField(name, KINDS[kind]) for name, kind in STATE_COLUMNS.items()])
State = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def stream(client: Client) -> Stream:
    stream = client.stream(f"snapshots/{next(_numbers)}")
    stream.create()
    return stream


def change(key: str, value: Any = None) -> dict[str, Any]:
    operation = "delete" if value is None else "upsert"
    return {"type": "t", "key": key, **({"value": value} if value else {}), "headers": {"operation": operation}}


def publish(client: Client, stream: Stream, offset: str, *, begun_before: bool = False, closed: bool = True) -> Stream:
    """A snapshot of the stream at an offset, in several appends."""
    state, decoder = RawState(), EventDecoder(msgspec.Raw)
    for batch in stream.read(type=bytes, until=offset).batches():
        state.apply(decoder.decode_array(b"[" + b",".join(batch.items) + b"]"))
    snapshot = client.stream(snapshot_path(stream.path or "", offset))
    events = [msgspec.json.encode(event) for event in state.events(offset)]
    snapshot.create(messages=[*events[:-1], msgspec.json.encode(change("half", 1))] if begun_before else ())
    for first in range(0, len(events), 3):
        snapshot.append_many(events[first : first + 3])
    if closed:
        snapshot.close()
    return snapshot


def rows(server: Server, schema: StructType = ALL, /, **texts: str) -> list[dict[str, Any]]:
    options = read_options({"url": server.url, **texts}, bounded=True)
    reader = BatchReader(options, schema)
    parts = reader.partitions()
    assert all(isinstance(part, TaskInput) for part in parts)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def fold(events: list[dict[str, Any]]) -> State:
    state: State = {}
    for row in sorted(events, key=lambda row: (row["stream"], row["order"], row["offset"], row["position"])):
        key = (row["stream"], row["type"], row["key"])
        if row["control"] == "reset":
            state = {other: value for other, value in state.items() if other[0] != row["stream"]}
        elif row["operation"] == "delete":
            state.pop(key, None)
        elif row["operation"]:
            state[key] = row["value"]
    return state


@pytest.mark.parametrize("seed", range(6))
def test_the_state_equals_that_of_the_whole_stream(server: Server, client: Client, stream: Stream, seed: int) -> None:
    chance = random.Random(seed)
    offsets = [stream.head().tail_offset]
    for number in range(60):
        events = [
            change(f"k{chance.randrange(9)}", None if chance.random() < 0.3 else [number, "é"])
            for _ in range(chance.randint(1, 4))
        ]
        if chance.random() < 0.05:
            events.append({"headers": {"control": "reset"}})
        offsets.append(stream.append_many(events).offset)
    whole = rows(server, streams=stream.path or "")
    chosen = sorted(chance.sample(offsets, 3))
    for offset in chosen[:2]:
        publish(client, stream, offset, begun_before=chance.random() < 0.5)
    publish(client, stream, chosen[2], closed=False)
    texts = {"startingOffsets": "snapshot", "minPartitions": str(chance.randint(1, 5))}
    for named in ({"streams": stream.path or ""}, {"pattern": f"{stream.path}*"}):
        read_rows = rows(server, **named, **texts)
        assert fold(read_rows) == fold(whole)
        position = int(chosen[1][17:])
        assert [row["order"] for row in read_rows if row["order"] >= position] == [
            row["order"] for row in whole if row["order"] >= position
        ]
        assert {row["order"] for row in read_rows if row["order"] < position} <= {position - 1}
        assert {row["append_time"] for row in read_rows if row["order"] < position} <= {None}
    ended = rows(server, streams=stream.path or "", endingOffsets=f'{{"{stream.path}": "{chosen[1]}"}}', **texts)
    assert fold(ended) == fold([row for row in whole if row["order"] < int(chosen[1][17:])])


def test_a_schema_with_few_columns(server: Server, client: Client, stream: Stream) -> None:
    stream.append_many([change("a", 1), change("b", 2), change("a", 3)])
    publish(client, stream, stream.head().tail_offset)
    stream.append(change("c", 4))
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    events = rows(server, schema, streams=stream.path or "", startingOffsets="snapshot")
    assert [(row["key"], row["value"]) for row in events if row["key"]] == [("c", "4"), ("a", "3"), ("b", "2")]


def test_a_snapshot_of_an_earlier_stream_at_the_path(server: Server, client: Client, stream: Stream) -> None:
    stream.append(change("old", 1))
    publish(client, stream, stream.head().tail_offset)
    stream.delete()
    stream.create(messages=[change("new", 2)])
    assert [row["key"] for row in rows(server, streams=stream.path or "", startingOffsets="snapshot")] == ["new"]


@pytest.mark.parametrize("missing", [0, -1])
def test_an_incomplete_snapshot(server: Server, client: Client, stream: Stream, missing: int) -> None:
    stream.append_many([change("a", 1), change("b", 2)])
    offset = stream.head().tail_offset
    events = [{"headers": {"control": "snapshot-start"}}, change("a", 1), {"headers": {"control": "snapshot-end"}}]
    del events[missing]
    client.stream(snapshot_path(stream.path or "", offset)).create(messages=events, closed=True)
    with pytest.raises(
        MessageError, match="is not a complete snapshot: delete it, or read with startingOffsets earliest"
    ):
        rows(server, streams=stream.path or "", startingOffsets="snapshot")


def test_where_snapshots_are_refused() -> None:
    texts = {"url": "http://127.0.0.1:4437", "streams": "a", "startingOffsets": "snapshot"}
    with pytest.raises(OptionError, match="is for batch reads: read the state in a batch, and start the query after"):
        read_options(texts, bounded=False)
    for bounded in (None, True, False):
        with pytest.raises(OptionError, match="is for the format stream-state"):
            read_options(texts, bounded=bounded, state=False)
