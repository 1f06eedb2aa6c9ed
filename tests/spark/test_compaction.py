"""Jobs over streams that are trimmed and compacted meanwhile: an oracle agrees, or an error says what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headwater.client import Client, Stream
from headwater.errors import DataLossError, IncompleteArchiveError
from headwater.pipeline import archive, materialize, replay
from headwater.spark import current_state
from tests.compacted import compact, compacting_server
from tests.servers import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compacting() -> Iterator[Server]:
    with compacting_server() as server:
        yield server


def update(stream: Stream, numbers: range) -> str:
    """Updates of nine keys, and keys that come and go."""
    for n in numbers:
        keys = ((f"k{n % 9}", n), (f"gone{n}", n), (f"gone{n - 3}", None))
        offset = stream.append_many([change(*one) for one in keys]).offset
    return offset


def change(key: str, value: int | None) -> dict[str, Any]:
    operation = "delete" if value is None else "upsert"
    return {"type": "t", "key": key, "headers": {"operation": operation}, **({} if value is None else {"value": value})}


def oracle(events: list[dict[str, Any]]) -> dict[str, str]:
    state: dict[str, str] = {}
    for event in events:
        if event["headers"].get("operation") == "delete":
            state.pop(event["key"], None)
        elif "operation" in event["headers"]:
            state[event["key"]] = str(event["value"])
    return state


@pytest.mark.parametrize("scd", [1, 2])
@pytest.mark.parametrize("path", ["merge", "buckets"])
def test_materialize_over_a_stream_that_is_compacted_meanwhile(
    spark: SparkSession, compacting: Server, tmp_path: Path, scd: int, path: str
) -> None:
    table = str(tmp_path / "table")
    with Client(compacting.url) as client:
        stream = client.stream(f"materialized/{scd}/{path}")
        stream.create()

        def run(**options: Any) -> list[dict[str, Any]]:
            parameters: dict[str, Any] = {
                "streams": stream.path,
                "table": table,
                "buckets": 2,
                "stored_as_scd_type": scd,
                "path": path,
            }
            assert materialize(spark, url=compacting.url, once=True, **parameters, **options).wait(120)
            rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().to_pylist()
            return rows

        update(stream, range(30))
        before = run()
        behind = stream.head().tail_offset
        update(stream, range(30, 150))
        compact(stream, compacting, replaced=behind)
        update(stream, range(150, 160))
        with pytest.raises(DataLossError, match=f"{stream.path}: unread data after {behind} is lost"):
            run()
        assert DeltaTable(table).to_pyarrow_table().num_rows == len(before)
        rows = [row for row in run(fail_on_data_loss=False) if row.get("is_current", True)]
        assert {row["key"]: row["value"] for row in rows} == oracle(stream.read().all())
        update(stream, range(160, 170))
        rows = [row for row in run() if row.get("is_current", True)]
        assert {row["key"]: row["value"] for row in rows} == oracle(stream.read().all())


def test_an_archive_of_a_stream_that_is_compacted_meanwhile(
    spark: SparkSession, compacting: Server, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    with Client(compacting.url) as client:
        stream = client.stream("archived/stream")
        stream.create()

        def run(**options: Any) -> None:
            parameters: dict[str, Any] = {"streams": stream.path, "table": table, **options}
            assert archive(spark, url=compacting.url, once=True, **parameters).wait(120)

        update(stream, range(30))
        run()
        behind = stream.head().tail_offset
        following = update(stream, range(30, 150))
        compact(stream, compacting, replaced=behind)
        update(stream, range(150, 160))
        with pytest.raises(DataLossError, match=f"{stream.path}: unread data after {behind} is lost"):
            run()
        run(fail_on_data_loss=False)
        (noted,) = DeltaTable(f"{table}.streams").to_pyarrow_table().to_pylist()
        assert noted["missing"] == f'[{{"begin":"{behind}","end":"{following}"}}]'
        with pytest.raises(IncompleteArchiveError, match="of which it has only the state"):
            replay(spark, url=compacting.url, table=table, to="replayed").wait(120)
        replay(spark, url=compacting.url, table=table, to="replayed", allow_gaps=True).wait(120)
        events = client.stream("replayed/archived/stream").read().all()
        snapshot = [n for n, event in enumerate(events) if event["headers"].get("control") == "snapshot-start"]
        assert len(snapshot) == 1
        assert oracle(events[snapshot[0] :]) == oracle(stream.read().all())
        assert len(events[: snapshot[0]]) == 90  # what was archived before


def test_the_current_state_of_a_compacted_stream(spark: SparkSession, compacting: Server) -> None:
    with Client(compacting.url) as client:
        stream = client.stream("folded/stream")
        stream.create()
        update(stream, range(150))
        reader = spark.read.format("stream-state").option("url", compacting.url).option("streams", stream.path or "")
        before = reader.load().cache()
        before.count()
        compact(stream, compacting)
        update(stream, range(150, 160))
        after = reader.load()
        both = before.unionByName(after)  # older events of the stream do not come back
        for events in (after, both):
            rows = current_state(events).collect()
            assert {row.key: row.value for row in rows} == oracle(stream.read().all())
