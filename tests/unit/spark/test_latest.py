"""Of the events of a range, the last one of each entity stays, and everything that is not a change of one."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater import limits
from headwater.errors import SchemaError
from headwater.positions import Position
from headwater.spark.columns import RangeReader
from headwater.spark.latest import check_columns, latest
from headwater.spark.options import read_options
from headwater.spark.positions import StreamRange
from tests.servers import Server

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("type", "key", "control", "bad")]
    + [("position", pa.int64()), ("pad", pa.binary())]
)


def batches(chance: random.Random, count: int, keys: int) -> list[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for position in range(count):
        row = {"type": chance.choice("tu"), "key": str(chance.randrange(keys)), "position": position}
        happening = chance.random()
        if happening < 0.05:
            row = {"control": "reset", "position": position}
        elif happening < 0.1:
            row["bad"] = "no value"
        elif happening < 0.12:
            row = {"bad": "no object", "position": position}
        rows.append({**row, "pad": bytes(100)})
    cuts = sorted({0, count, *(chance.randrange(count) for _ in range(7))})
    parts = [pa.RecordBatch.from_pylist(rows[a:b], SCHEMA) for a, b in itertools.pairwise(cuts)]
    return [pa.RecordBatch.from_pylist([], SCHEMA), *parts]


def positions(parts: list[pa.RecordBatch]) -> list[int]:
    return [row["position"] for part in parts for row in part.to_pylist()]


def expected(rows: list[dict[str, Any]]) -> list[int]:
    last: dict[tuple[str, str], int] = {}
    others = {rows[0]["position"]} if rows else set()
    for row in rows:
        if row["control"] is not None or row["bad"] is not None:
            others.add(row["position"])
        else:
            last[row["type"], row["key"]] = row["position"]
    return sorted(others | set(last.values()))


@pytest.mark.parametrize("seed", range(20))
def test_the_last_event_of_each_entity(seed: int) -> None:
    chance = random.Random(seed)
    parts = batches(chance, chance.randint(1, 400), chance.choice([1, 10, 1000]))
    assert positions(list(latest(parts))) == expected([row for part in parts for row in part.to_pylist()])


@pytest.mark.parametrize("seed", range(10))
def test_with_little_memory_no_last_event_is_lost_and_the_order_stays(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPARK_LATEST_BYTES", 2_000)
    chance = random.Random(seed)
    parts = batches(chance, 300, 20)
    places = positions(list(latest(parts)))
    assert places == sorted(set(places))
    assert len(places) < 300
    assert set(expected([row for part in parts for row in part.to_pylist()])) <= set(places)


def test_no_events() -> None:
    assert positions(list(latest([]))) == []


def test_a_schema_without_the_columns_that_it_needs() -> None:
    with pytest.raises(SchemaError, match="latestOnly needs the columns type, key, control; the schema lacks control"):
        check_columns(["key", "type", "value"])


@pytest.mark.parametrize(
    "names", [("stream", "offset", "type", "key", "value", "control", "order"), ("key", "type", "control")]
)
def test_rows_of_a_range_have_all_columns(server: Server, names: tuple[str, ...]) -> None:
    """Columns that all rows of a range have in common are added to the rows that stay."""
    options = read_options(
        {"url": server.url, "streams": "latest/columns", "latestOnly": "true"}, bounded=True, state=True
    )
    events = [
        {"type": "t", "key": str(n % 3), "value": {"n": n}, "headers": {"operation": "upsert"}} for n in range(30)
    ]
    kinds = {"order": LongType()}
    schema = StructType([StructField(name, kinds.get(name, StringType())) for name in names])
    with options.open() as client:
        path = "latest/columns"
        stream = client.stream(path, content_type="application/json")
        stream.create()
        stream.append_many(events)
        part = StreamRange(path, "application/json", Position("-1"), Position(stream.head().tail_offset), exact=True)
        rows = [row for batch in RangeReader(options, client, schema).read(part) for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == ["0", "0", "1", "2"]
    assert all(tuple(row) == names for row in rows)
    assert {(row.get("stream"), row.get("offset")) for row in rows} <= {("latest/columns", "-1"), (None, None)}
    assert [json.loads(row["value"])["n"] for row in rows if "value" in names] in ([0, 27, 28, 29], [])
