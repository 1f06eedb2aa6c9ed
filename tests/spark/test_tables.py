"""Tables in Spark: SURLs as sources, tables as sinks, and exactly once from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bench.servers import Server
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client, Put, Remove
from headwater.protocol.tables.escaping import Escape
from tests.fault.hostile import Fate, hostile
from tests.table_servers import head, hostile_server, lines

Read = Callable[..., DataFrame]
Write = Callable[..., None]
HARD = "a\tb\nc\\d"


def copy(spark: SparkSession, source: dict[str, Any], target: dict[str, Any], checkpoint: str) -> None:
    """Copy the new rows of a table to another one."""
    query = (
        spark.readStream.format("stp")
        .options(**source)
        .load()
        .writeStream.format("stp")
        .options(checkpointLocation=checkpoint, **target)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def rows(client: Client, name: str) -> list[tuple[str, str, str]]:
    return [(row.action, row.key, row.record) for row in client.table(name).rows()]


class Crash:
    """Sends requests up to the n-th of a kind, loses its response, and fails all later ones."""

    def __init__(self, aim: str, number: int) -> None:
        self._aim = aim
        self._left = number

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def decide(self, what: str, _: int) -> Fate:
        if self.is_over:
            return Fate("refuse")
        self._left -= what.startswith(self._aim)
        return Fate("lose") if self.is_over else Fate()


def test_batches(read: Read, client: Client, path: str) -> None:
    table = client.table(path)
    table.create(escape=Escape.BACKSLASH)
    before = datetime.now(UTC).replace(tzinfo=None)
    table.append([Put(f"k{n % 10}", str(n)) for n in range(99)] + [Remove("k3")] + [Put(HARD, HARD)])
    rows = read("stp", table=path, minPartitions=4)
    assert rows.rdd.getNumPartitions() == 4
    first, *_, gone, last = rows.collect()
    assert (first.seqno, first.action, first.key, first.record) == (1, "+", "k0", "0")
    assert abs(first.timestamp - before) < timedelta(minutes=1)
    assert (gone.action, gone.key, gone.record) == ("-", "k3", "")
    assert (last.seqno, last.key, last.record) == (101, HARD, HARD)
    some = read("stp", table=path, startingSeqNo=11, endingSeqNo=20, schema="record STRING, seqno BIGINT")
    assert [(row.record, row.seqno) for row in some.collect()] == [(str(n), n + 1) for n in range(10, 20)]
    live = read("stp", table=path, view="active")
    assert {row.key for row in live.collect()} == {*(f"k{n}" for n in range(10)), HARD} - {"k3"}
    with pytest.raises(PySparkException, match="did you mean startingSeqNo"):
        read("stp", table=path, startingOffsets="latest")


def test_a_foreign_table(spark: SparkSession, checkpoint: str, client: Client, server: Server, path: str) -> None:
    """A server that supports only `since_id`, has gaps, repeats rows, and truncates every second response."""
    seqnos = [1, 5, 6, 1000, 10**12]

    def script(number: int, query: str) -> Iterator[bytes]:
        since_id = int(query.partition("since_id=")[2].partition("&")[0])
        rows = (
            seqnos[since_id:] if since_id < 0 else [seqno for seqno in seqnos if seqno >= since_id > 0 or not since_id]
        )
        yield head() + lines(*rows)[: -9 if number % 2 and len(rows) > 1 else None]

    with hostile_server(script) as other:
        url = f"{other.url}/prices?eu=1"
        batch = spark.read.format("stp").options(url=url, minPartitions=2).load()
        assert [row.seqno for row in batch.collect()] == seqnos
        copy(spark, {"url": url, "maxRowsPerTrigger": 2}, {"url": server.url, "table": path}, checkpoint)
        assert [key for _, key, _ in rows(client, path)] == [f"k{seqno}" for seqno in seqnos]
        seqnos[0] = 2  # an earlier row has changed, which is not read again; the last row that was read has not
        seqnos.append(10**12 + 7)
        copy(spark, {"url": url}, {"url": server.url, "table": path}, checkpoint)
        assert len(rows(client, path)) == 6


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (head(content_type="text/html") + b"<html>", "the Content-Type of a table is text/sequence"),
        (head(STP_Gapless="true", STP_Last_SeqNo="3") + lines(1, 3), "row 2 is missing"),
    ],
)
def test_a_hostile_table(spark: SparkSession, answer: bytes, message: str) -> None:
    with hostile_server(lambda *_: iter([answer])) as other, pytest.raises(PySparkException, match=message):
        spark.read.format("stp").options(url=f"{other.url}/t", failOnDataLoss="false").load().count()


def test_writes(spark: SparkSession, write: Write, client: Client, path: str) -> None:
    frame = spark.createDataFrame([("a", "1"), ("b", None), ("c", "")], "key STRING, record STRING").coalesce(1)
    for _ in range(2):
        write(frame, "stp", table=path, schema="price", version=2, writeId="monday")
    assert rows(client, path) == [("+", "a", "1"), ("-", "b", ""), ("+", "c", "")]
    assert (client.table(path).info().schema, client.table(path).info().version) == ("price", 2)
    client.stream(path).create()
    write(frame.selectExpr("to_json(struct(*)) AS value"), stream=path, writeId="monday")
    assert len(client.stream(path).read().all()) == 3, "a stream of the same name is another target"
    hard = spark.createDataFrame([(HARD, HARD)], "key STRING, record STRING")
    with pytest.raises(PySparkException, match=r"cannot be appended to .*: there is a newline"):
        write(hard, "stp", table=path)
    write(hard, "stp", table=f"{path}/escaped", escape="backslash")
    assert rows(client, f"{path}/escaped") == [("+", HARD, HARD)]
    with pytest.raises(PySparkException, match="the column record is missing"):
        write(frame.drop("record"), "stp", table=f"{path}/none")
    assert f"{path}/none" not in {info.name for info in client.tables(path)}, "a refused write creates no table"


def test_from_a_stream_to_a_table_to_a_table(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str
) -> None:
    """Stream → table → table, with crashes after appends to the last one.

    The proxy lets an append through, loses its answer, and nothing gets through after that: the query fails as if its
    driver had been killed there. The next run replays its batch.
    """
    expected = [("+" if n else "-", f"k{n}", str(n) if n else "") for n in range(120)]
    client.stream(path).create(messages=[{"k": f"k{n}", "v": n or None} for n in range(120)])
    query = (
        spark.readStream.format("durable-streams")
        .options(url=server.url, streams=path)
        .load()
        .selectExpr("get_json_object(value, '$.k') AS key", "get_json_object(value, '$.v') AS record")
        .writeStream.format("stp")
        .options(url=server.url, table=f"{path}/middle", checkpointLocation=f"{checkpoint}/1")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert rows(client, f"{path}/middle") == expected
    source = {"url": client.table(f"{path}/middle").url, "maxRowsPerTrigger": 50, "minPartitions": 2}
    client.table(
        f"{path}/last"
    ).create()  # otherwise the first append is refused, and repeated after the table is created
    for lost in (1, 2):
        crash = Crash(f"POST /v1/table/{path}/last", lost)
        with hostile(server, crash.decide) as proxy:
            target = {"url": proxy.url, "table": f"{path}/last", "retryTimeout": 0.2, "maxRequestBytes": 400}
            with pytest.raises(PySparkException):
                copy(spark, source, target, f"{checkpoint}/2")
        assert crash.is_over
        assert 0 < len(rows(client, f"{path}/last")) < len(expected)
    copy(spark, source, {"url": server.url, "table": f"{path}/last"}, f"{checkpoint}/2")
    assert rows(client, f"{path}/last") == expected
