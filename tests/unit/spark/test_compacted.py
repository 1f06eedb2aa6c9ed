"""Ranges of trimmed and compacted streams, as the driver plans them and its tasks read them, without Spark."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headwater.client import Client, Stream
from headwater.errors import DataLossError
from headwater.positions import byte_position, incarnation, is_in_snapshot
from headwater.spark.columns import STATE_COLUMNS, STREAM_COLUMNS, RangeReader
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Planner, from_json, to_json
from headwater.spark.positions import EARLIEST_PLACE, StreamPlace
from headwater.spark.querying import TaskInput
from headwater.spark.sources import StreamReader
from tests.compacted import compact, compacting_server
from tests.servers import Server
from tests.trimming import keep_last

_numbers = itertools.count()
_KINDS = {"STRING": StringType(), "BIGINT": LongType(), "TIMESTAMP_LTZ": TimestampType()}
STATES = StructType([StructField(name, _KINDS[kind]) for name, kind in STATE_COLUMNS.items()])
VALUES = StructType([StructField(name, _KINDS[kind]) for name, kind in STREAM_COLUMNS.items()])


@pytest.fixture(scope="module")
def compacting() -> Iterator[Server]:
    with compacting_server() as server:
        yield server


@pytest.fixture
def stream(compacting: Server) -> Iterator[Stream]:
    with Client(compacting.url) as client:
        stream = client.stream(f"compacted/{next(_numbers)}")
        stream.create()
        yield stream


def options_for(stream: Stream, *, state: bool, **texts: str) -> ReadOptions:
    named = {"url": stream.client._session.root, "streams": stream.path or "", **texts}
    return read_options(named, bounded=False, state=state)


def change(key: str, value: int | None) -> dict[str, Any]:
    operation = "delete" if value is None else "upsert"
    return {"type": "t", "key": key, "headers": {"operation": operation}, **({} if value is None else {"value": value})}


def fill(stream: Stream, numbers: range) -> str:
    """Changes of nine keys, of which the last ones are live."""
    for n in numbers:
        offset = stream.append_many([change(f"k{n % 9}", n), change(f"gone{n}", n), change(f"gone{n}", None)]).offset
    return offset


def read(stream: Stream, options: ReadOptions, start: Any, end: Any, schema: StructType = STATES) -> list[Any]:
    planner = Planner(options, stream.client)
    planner.tails()
    reader = RangeReader(options, stream.client, schema)
    tasks = planner.partitions(start, end)
    return [row for part in tasks for one in part for batch in reader.read(one) for row in batch.to_pylist()]


def fold(rows: list[Any]) -> dict[str, str]:
    """The naive fold of rows in the order of the stream."""
    state: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (incarnation(row["offset"]), row["order"], row["position"])):
        if row["control"] == "reset":
            state.clear()
        elif row["operation"] == "delete":
            state.pop(row["key"], None)
        elif row["operation"] is not None:
            state[row["key"]] = row["value"]
    return state


def oracle(stream: Stream) -> dict[str, str]:
    state: dict[str, str] = {}
    for event in stream.read():
        if event["headers"].get("operation") == "delete":
            state.pop(event["key"], None)
        elif "operation" in event["headers"]:
            state[event["key"]] = str(event["value"])
    return state


def tail(stream: Stream) -> dict[str, StreamPlace]:
    return {stream.path or "": StreamPlace(stream.head().tail_offset)}


@pytest.mark.parametrize("parts", ["1", "5"])
def test_a_compacted_stream_is_read_from_its_snapshot(stream: Stream, compacting: Server, parts: str) -> None:
    following = fill(stream, range(200))
    first = compact(stream, compacting)
    assert is_in_snapshot(first)
    fill(stream, range(200, 210))
    options = options_for(stream, state=True, minPartitions=parts)
    rows = read(stream, options, {stream.path or "": EARLIEST_PLACE}, tail(stream))
    assert len(rows) < 100
    assert fold(rows) == oracle(stream)
    in_snapshot = [row for row in rows if row["append_time"] is None]
    assert [row["control"] for row in in_snapshot if row["control"]] == ["reset", "snapshot-end"]
    assert {(row["offset"], row["order"]) for row in in_snapshot} == {(following, (byte_position(following) or 0) - 1)}
    assert {row["offset"].partition("_")[0] for row in rows} == {following.partition("_")[0]}  # one incarnation
    values = read(stream, options_for(stream, state=False), {stream.path or "": EARLIEST_PLACE}, tail(stream), VALUES)
    assert len(values) == len(rows)


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "4"}, {"maxBytesPerTrigger": "300"}, {}])
@pytest.mark.parametrize("behind", [0, 60])
def test_a_query_that_was_behind_continues_with_the_snapshot(
    stream: Stream, compacting: Server, limit: dict[str, str], behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = fill(stream, range(behind)) if behind else stream.head().tail_offset
    path = stream.path or ""
    reader = StreamReader(options_for(stream, state=True, failOnDataLoss="false", **limit), STATES)
    place = reader.initialOffset()
    rows: list[Any] = []

    def catch_up() -> None:
        nonlocal place
        while True:
            options = reader._options
            planner = reader._here.planner
            end = to_json(planner.advance(from_json(place), reader._here.look(), limited=bool(limit)))
            if end == place:
                return
            rows.extend(read(stream, options, from_json(place), from_json(end)))
            place = end

    catch_up()
    assert place[path].startswith(before.partition("_")[0])
    fill(stream, range(behind, behind + 200))
    compact(stream, compacting, replaced=before)
    fill(stream, range(behind + 200, behind + 210))
    with caplog.at_level(logging.WARNING):
        catch_up()
    assert fold(rows) == oracle(stream)
    assert f"the first offset of the stream is {stream.head().first_offset}" in caplog.text
    reader.stop()


def test_data_that_was_trimmed_is_an_error_that_names_what_is_missing(stream: Stream, compacting: Server) -> None:
    before = fill(stream, range(3))
    fill(stream, range(3, 9))
    options = options_for(stream, state=False)
    start = {stream.path or "": StreamPlace(before)}
    keep_last(stream, 3)
    first = stream.head().first_offset
    with pytest.raises(DataLossError, match=f"{stream.path}: unread data after {before} is lost.*{first}"):
        read(stream, options, start, tail(stream), VALUES)
    lossy = options_for(stream, state=False, failOnDataLoss="false")
    assert len(read(stream, lossy, start, tail(stream), VALUES)) == 3


def test_a_range_that_is_trimmed_after_it_was_planned(
    stream: Stream, compacting: Server, caplog: pytest.LogCaptureFixture
) -> None:
    before = fill(stream, range(3))
    fill(stream, range(3, 9))
    options = options_for(stream, state=False)
    tasks = Planner(options, stream.client).partitions({stream.path or "": StreamPlace(before)}, tail(stream))
    keep_last(stream, 3)
    first = stream.head().first_offset
    with pytest.raises(DataLossError, match=f"data between {before} and {first} is lost"):
        list(StreamReader(options, VALUES).read(TaskInput(tasks[0])))
    lossy = options_for(stream, state=False, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        batches = list(StreamReader(lossy, VALUES).read(TaskInput(tasks[0])))
    assert sum(batch.num_rows for batch in batches) == 3
    assert f"data between {before} and {first} is lost" in caplog.text


def test_a_first_batch_that_is_repeated_after_a_trim_does_not_hide_it(stream: Stream) -> None:
    """Its start is an offset, not the beginning, which has moved."""
    fill(stream, range(5))
    reader = StreamReader(options_for(stream, state=False), VALUES)
    start = reader.initialOffset()
    end = to_json(tail(stream))
    keep_last(stream, 3)
    with pytest.raises(DataLossError, match="unread data after"):
        reader.partitions(start, end)
    reader.stop()
