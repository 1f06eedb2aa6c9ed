"""The formats against the Node reference server, which has none of our extensions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.servers import Server, reference
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    with reference() as server:
        yield server


def numbers(rows: DataFrame) -> list[int]:
    return [json.loads(row.value)["n"] for row in rows.orderBy("offset", "position").collect()]


def test_batches(spark: SparkSession, node: Server, path: str) -> None:
    with Client(node.url) as client:
        stream = client.stream(path)
        stream.create()
        stream.append_many([{"n": n} for n in range(50)])
        middle = stream.head().tail_offset
        stream.append_many([{"n": n} for n in range(50, 100)])

    def read(**options: Any) -> DataFrame:
        return spark.read.format("durable-streams").options(url=node.url, streams=path, **options).load()

    assert numbers(read()) == list(range(100))
    assert read(minPartitions=8).rdd.getNumPartitions() == 1
    assert numbers(read(startingOffsets=json.dumps({path: middle}))) == list(range(50, 100))
    assert numbers(read(endingOffsets=json.dumps({path: f"{middle}+5"}))) == list(range(55))
    with pytest.raises(PySparkException, match="pattern needs a server that lists its streams"):
        spark.read.format("durable-streams").options(url=node.url, pattern="*").load()


def test_there_and_back_with_a_restart(spark: SparkSession, node: Server, path: str, tmp_path: Path) -> None:
    """With large batches, which are staged before they are published, and limits that end inside responses."""

    def run() -> list[int]:
        query = (
            spark.readStream.format("durable-streams")
            .options(url=node.url, streams=path, maxRecordsPerTrigger=70)
            .load()
            .select("value")
            .repartition(3)
            .writeStream.format("durable-streams")
            .options(url=node.url, stream=f"{path}/copy", maxRequestBytes=300)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    with Client(node.url) as client:
        stream = client.stream(path)
        stream.create()
        for start in range(0, 200, 50):
            stream.append_many([{"n": n} for n in range(start, start + 50)])
        assert run() == [70, 70, 60]
        stream.append_many([{"n": n} for n in range(200, 210)])
        assert run() == [10]
        assert run() == []
        copied = [message["n"] for message in client.stream(f"{path}/copy").read().all()]
        assert sorted(copied) == list(range(210))
        assert sorted(copied[:70]) == list(range(70))


def test_writes_with_an_id_and_state(spark: SparkSession, node: Server, path: str) -> None:
    rows = spark.range(100).selectExpr(
        "'t' AS type", "CAST(id AS STRING) AS key", "'insert' AS operation", "CAST(id AS STRING) AS value"
    )
    for partitions in (1, 4):
        rows.repartition(partitions).write.format("stream-state").options(
            url=node.url, stream=path, writeId="once"
        ).mode("append").save()
    collected = spark.read.format("stream-state").options(url=node.url, streams=path).load().orderBy("order").collect()
    with Client(node.url) as client:
        events = client.stream(path).read().all()
    assert [row.key for row in collected] == [event["key"] for event in events]
    assert sorted(int(row.key) for row in collected) == list(range(100))
