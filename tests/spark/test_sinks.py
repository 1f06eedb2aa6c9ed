"""The sinks write all rows, and no row twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.servers import Server
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from headwater.client import Client

Write = Callable[..., None]


def frame(spark: SparkSession, count: int, *, parts: int = 3, width: int = 0) -> DataFrame:
    """Rows {"n": …} in order, in several partitions."""
    rows = spark.range(0, count, 1, parts)
    return rows.selectExpr(f"to_json(struct(id AS n, repeat('x', {width}) AS pad)) AS value")


def numbers(client: Client, path: str) -> list[int]:
    return [message["n"] for message in client.stream(path).read().all()]


def test_rows_are_appended_in_order(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    write(frame(spark, 100), stream=path)
    assert numbers(client, path) == list(range(100))
    write(frame(spark, 50), stream=path)
    assert numbers(client, path) == [*range(100), *range(50)]
    assert client.stream(path).head().content_type == "application/json"


def test_a_write_with_an_id_happens_once(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    write(frame(spark, 100, parts=2), stream=path, writeId="monday")
    write(frame(spark, 100, parts=7), stream=path, writeId="monday")
    assert numbers(client, path) == list(range(100))
    write(frame(spark, 10), stream=path, writeId="tuesday")
    assert len(numbers(client, path)) == 110


def test_more_rows_than_fit_in_a_request(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = frame(spark, 5000, width=1000)  # 5 MB; the server accepts 1 MiB in a request
    write(rows, stream=path, writeId=path.replace("/", "-"))
    assert numbers(client, path) == list(range(5000))
    write(rows.repartition(5), stream=path, writeId=path.replace("/", "-"))
    assert numbers(client, path) == list(range(5000))
    left = [info.path for info in client.list("_spark/") if not info.path.endswith(("/list", "/fence"))]
    assert left == []


def test_many_rows_to_several_targets(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = frame(spark, 2000, parts=2, width=1000)
    rows = rows.selectExpr(f"concat('{path}/', get_json_object(value, '$.n') % 2) AS stream", "value")
    write(rows, writeId="several")
    for part in range(2):
        assert numbers(client, f"{path}/{part}") == list(range(part, 2000, 2))


def test_a_write_id_is_for_one_target_and_versions_increase(
    spark: SparkSession, write: Write, client: Client, path: str
) -> None:
    for name in ("a", "b"):
        write(frame(spark, 10), stream=f"{path}/{name}", writeId="both")
        assert numbers(client, f"{path}/{name}") == list(range(10))
    for version in (3, 3, 4, 4):
        write(frame(spark, 10), stream=f"{path}/c", writeId="counted", writeVersion=version)
    assert numbers(client, f"{path}/c") == [*range(10), *range(10)]
    with pytest.raises(PySparkException, match="rows of a later batch than batch 2"):
        write(frame(spark, 10), stream=f"{path}/c", writeId="counted", writeVersion=2)


def test_a_column_names_the_target(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = frame(spark, 30).selectExpr(f"concat('{path}/', get_json_object(value, '$.n') % 3) AS stream", "value")
    write(rows)
    for part in range(3):
        assert numbers(client, f"{path}/{part}") == list(range(part, 30, 3))
    write(rows, stream=f"{path}/all")
    assert sorted(numbers(client, f"{path}/all")) == list(range(30))


def test_text_and_bytes(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    lines = spark.createDataFrame([("one\n",), ("two é\n",)], "value STRING").coalesce(1)
    write(lines, stream=f"{path}/text", contentType="text/plain")
    assert "".join(client.stream(f"{path}/text").read(type=str).all()) == "one\ntwo é\n"
    client.stream(f"{path}/bytes").create(content_type="application/octet-stream")
    write(lines.selectExpr("CAST(value AS BINARY) AS value"), stream=f"{path}/bytes")
    assert b"".join(client.stream(f"{path}/bytes").read(type=bytes).all()) == "one\ntwo é\n".encode()


def test_json_of_every_shape(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    texts = ["1", ' {"a": [1, 2]} ', '"x,y"', "[[1],[2]]", "null", '"\\u00e9é"', "[]"]
    write(spark.createDataFrame([(text,) for text in texts], "value STRING").coalesce(1), stream=path)
    assert client.stream(path).read().all() == [json.loads(text) for text in texts]


@pytest.mark.parametrize("value", ["", "1,2", "1],[2", "{", "plain", "[1", "nul", "\x00"])
def test_what_is_not_one_json_text(spark: SparkSession, write: Write, client: Client, path: str, value: str) -> None:
    rows = spark.createDataFrame([("1",), (value,), ("2",)], "value STRING").coalesce(1)
    with pytest.raises(PySparkException, match="a value is not one JSON text"):
        write(rows, stream=path)
    assert not list(client.list(path))


def test_texts_that_are_valid_json_only_together(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = spark.createDataFrame([("[1",), ("2]",), ("3,4",)], "value STRING").coalesce(1)
    with pytest.raises(PySparkException, match="a value is not one JSON text"):
        write(rows, stream=path)


def test_errors_name_the_mistake(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = frame(spark, 3)
    for wrong, options, message in (
        (rows, {}, "set the option stream"),
        (rows.withColumnRenamed("value", "text"), {"stream": path}, "the column value is missing"),
        (rows.selectExpr("struct(value) AS value"), {"stream": path}, "the column value is struct"),
        (rows.select(lit(None).cast("string").alias("value")), {"stream": path}, "a row has no value"),
        (rows, {"stream": path, "createTarget": "false"}, "does not exist, and createTarget is false"),
        (rows.selectExpr("CAST(NULL AS STRING) AS stream", "value"), {}, "a row has no target"),
        (rows, {"stream": path, "writeId": "a b/c"}, "writeId must be at most"),
        (rows, {"stream": path, "streem": path}, "did you mean stream"),
        (
            frame(spark, 9, parts=1, width=300_000),
            {"stream": path, "maxRequestBytes": 2 << 20},
            "lower maxRequestBytes",
        ),
    ):
        client.stream(path).create()
        client.stream(path).delete()
        with pytest.raises(PySparkException) as caught:
            write(wrong, **options)
        assert message in str(caught.value), message
    with pytest.raises(PySparkException, match="append-only"):
        rows.write.format("durable-streams").option("url", client.stream(path).url).mode("overwrite").save()
    client.stream(f"{path}/closed").create(closed=True)
    with pytest.raises(PySparkException, match="is closed"):
        write(rows, stream=f"{path}/closed")


def test_state_goes_round(
    spark: SparkSession, read: Callable[..., DataFrame], write: Write, client: Client, path: str
) -> None:
    from tests.spark.test_sources import EVENTS

    client.stream(path).create(messages=EVENTS)
    write(read("stream-state", streams=path).drop("stream"), "stream-state", stream=f"{path}/copy")
    assert client.stream(f"{path}/copy").read().all() == EVENTS


def test_values_of_other_types_than_json_text(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    rows = spark.sql(
        "SELECT 'user' AS type, '1' AS key, 'upsert' AS operation, named_struct('name', 'Ada',"
        " 'born', DATE'1815-12-10', 'at', TIMESTAMP'2026-01-01 00:00:00', 'tags', array('a'), 'score', 1.50BD) AS value"
    )
    write(rows, "stream-state", stream=path)
    [event] = client.stream(path).read().all()
    assert event["value"]["name"] == "Ada"
    assert event["value"]["born"] == "1815-12-10"
    assert event["value"]["at"].startswith("2026-01-01T00:00:00")
    assert event["value"]["tags"] == ["a"]


def test_rows_that_are_not_events(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    good = "'t' AS type, 'k' AS key, 'insert' AS operation, '1' AS value"
    for wrong, message in (
        (good.replace("'insert'", "'put'"), "put"),
        (good.replace("'1'", "CAST(NULL AS STRING)"), "without a value"),
        (good.replace("'k'", "CAST(NULL AS STRING)"), "key"),
        (good.replace("'1'", "'{'"), "a value is not one JSON text"),
        (good + ", 'reset' AS control", "both an operation and a control"),
        (good.replace("'1'", "'1,2'"), "a value is not one JSON text"),
        ("'k' AS key, '1' AS value", "need a column type"),
        (good + ", 1 AS txid", "txid is int"),
    ):
        with pytest.raises(PySparkException) as caught:
            write(spark.sql(f"SELECT {wrong}"), "stream-state", stream=path)
        assert message in str(caught.value), message
    assert not list(client.list(path))


def test_a_query_that_updates_writes_batch_by_batch(
    spark: SparkSession, server: Server, write: Write, client: Client, path: str, checkpoint: str
) -> None:
    """The newest of each key, from one stream to another."""
    events = [
        {"type": "t", "key": str(n % 7), "value": {"n": n}, "headers": {"operation": "upsert"}} for n in range(100)
    ]
    client.stream(path).create()
    for start in range(0, 100, 10):
        client.stream(path).append_many(events[start : start + 10])
    counts = (
        spark.readStream.format("stream-state")
        .options(url=server.url, streams=path, maxRecordsPerTrigger=30)
        .load()
        .groupBy("type", "key")
        .count()
        .selectExpr("type", "key", "'upsert' AS operation", "to_json(struct(count)) AS value")
    )

    def write_counts(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            write(rows, "stream-state", stream=f"{path}/counts", writeId="counts", writeVersion=batch)

    query = (
        counts.writeStream.foreachBatch(write_counts)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    latest = {event["key"]: event["value"]["count"] for event in client.stream(f"{path}/counts").read().all()}
    assert len(client.stream(f"{path}/counts").read().all()) == 28  # seven keys in each of four batches
    assert latest == {str(key): len(range(key, 100, 7)) for key in range(7)}


def copying(spark: SparkSession, server: Server, source: str, target: str, checkpoint: str) -> None:
    query = (
        spark.readStream.format("durable-streams")
        .options(url=server.url, streams=source)
        .load()
        .select("value")
        .writeStream.format("durable-streams")
        .options(url=server.url, stream=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_batch_number_that_is_used_again_for_other_rows(
    spark: SparkSession, server: Server, write: Write, client: Client, path: str, checkpoint: str
) -> None:
    """The last offset file was deleted; the checkpoint was copied to another target; two DataFrames share a writeId."""
    client.stream(path).create(messages=[{"n": 1}])
    copying(spark, server, path, f"{path}/copy", checkpoint)
    shutil.copytree(checkpoint, f"{checkpoint}-copied")
    for name in ("offsets/0", "offsets/.0.crc", "commits/0", "commits/.0.crc"):
        Path(checkpoint, name).unlink()
    copying(spark, server, path, f"{path}/copy", checkpoint)  # the same offsets: the same batch
    for name in ("offsets/0", "offsets/.0.crc", "commits/0", "commits/.0.crc"):
        Path(checkpoint, name).unlink()
    client.stream(path).append({"n": 2})
    with pytest.raises(PySparkException, match=r"batch 0 of this query was recorded .* other offsets"):
        copying(spark, server, path, f"{path}/copy", checkpoint)
    assert numbers(client, f"{path}/copy") == [1]
    copying(spark, server, path, f"{path}/copy", f"{checkpoint}-copied")
    assert numbers(client, f"{path}/copy") == [1, 2]
    client.stream(path).append({"n": 3})
    shutil.copytree(f"{checkpoint}-copied", f"{checkpoint}-again")
    copying(spark, server, path, f"{path}/copy", f"{checkpoint}-copied")
    with pytest.raises(PySparkException, match=f"for the stream {path}/copy, not for the stream {path}/other"):
        copying(spark, server, path, f"{path}/other", f"{checkpoint}-again")
    write(frame(spark, 3), stream=f"{path}/frames", writeId="frames")
    with pytest.raises(PySparkException, match="a different writeId for each DataFrame"):
        write(frame(spark, 3, width=1), stream=f"{path}/frames", writeId="frames")
    write(frame(spark, 3, width=1), stream=f"{path}/frames", writeId="frames", checkRepeats=False)
    assert numbers(client, f"{path}/frames") == [0, 1, 2]


def test_update_mode_is_refused_by_spark(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str
) -> None:
    """Spark refuses it before it calls the sink. The documentation says what to use instead."""
    client.stream(path).create(messages=[1])
    rows = spark.readStream.format("durable-streams").option("url", server.url).option("streams", path).load()
    counted = rows.groupBy("stream").count().selectExpr("to_json(struct(count)) AS value")
    writer = counted.writeStream.format("durable-streams").option("url", server.url).option("stream", f"{path}/counts")
    with pytest.raises(PySparkException, match="durable-streams does not support Update mode"):
        writer.outputMode("update").option("checkpointLocation", checkpoint).start().processAllAvailable()
    assert list(client.list(f"{path}/")) == []
