"""The Spark source and sink, compared with Spark's text reader and Parquet writer; and the cost of an idle query."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.ready_batches import Discarding, ReadyBatches
from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from bench.uploading import Uploading, uploading_server
from headwater.client import Client
from headwater.spark import session

MESSAGES = 5_000_000
WRITTEN = 3_000_000
STEP = 20_000
WARM, RUNS = 2, 5
ALL_IN_ONE = 1 << 40  # bytes for a partition: only minPartitions counts
GOAL = ">= 0.85"  # of a source that receives the same bytes
SINK_GOALS = {"headwater": ">= 0.4", "headwater, stp": ">= 0.25"}


def run_source(bench: Bench) -> None:
    """The part of the bench about reading a stream, which takes a few minutes."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        directory = Path(name)
        with headwater("--data-dir", str(directory / "data")) as server:
            _fill(server, directory / "messages.txt")
            spark = session("bench", master="local[2]", config={"spark.driver.memory": "4g"})
            spark.sparkContext.setLogLevel("ERROR")
            try:
                _read(bench, spark, server, directory / "messages.txt")
            finally:
                spark.stop()


def run_spark(bench: Bench) -> None:
    with _spark() as (spark, server, directory):
        _fill(server, directory / "messages.txt")
        _read(bench, spark, server, directory / "messages.txt")
        _partitions(bench, spark, server)
        _read_table(bench, spark, server)
        _write(bench, spark, server, directory)
        _idle(bench, spark, server, directory)


def run_sink(bench: Bench) -> None:
    with _spark() as (spark, server, directory):
        _write(bench, spark, server, directory)


@contextlib.contextmanager
def _spark() -> Iterator[tuple[SparkSession, Server, Path]]:
    """A session, a durable server, and a directory for files."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        directory = Path(name)
        with headwater("--data-dir", str(directory / "data")) as server:
            config = {"spark.driver.memory": "4g", "spark.sql.streaming.noDataProgressEventInterval": "0"}
            spark = session("bench", master="local[2]", config=config)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield spark, server, directory
            finally:
                spark.stop()


def _fill(server: Server, text: Path) -> None:
    """Write the same messages of 100 bytes to a stream, to a table as records, and to a file as lines."""
    with Client(server.url) as client, text.open("wb") as file:
        stream, table = client.stream("messages", content_type="application/json"), client.table("messages")
        stream.create()
        table.create()
        for first in range(0, MESSAGES, STEP):
            messages = [
                (b'{"id":%d,"name":"customer %d","pad":"' % (n, n)).ljust(98, b"x") + b'"}'
                for n in range(first, first + STEP)
            ]
            stream.append_body(b"[" + b",".join(messages) + b"]")
            table.append_body(b"".join(b"+\t%d\t%s\n" % line for line in enumerate(messages, first)))
            file.write(b"\n".join(messages) + b"\n")
    server.wait_until_folded()


def _to_nothing(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _in_turns(
    works: dict[str, Callable[[], None]],
    count: int,
    warm: int = WARM,
    runs: int = RUNS,
    prepare: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Rows per second of each work: the median of `runs` runs, which alternate, after `warm` runs to warm up. `prepare`
    is called before each run."""
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(warm + runs):
        for name, work in works.items():
            prepare()
            started = time.perf_counter()
            work()
            samples[name].append(count / (time.perf_counter() - started))
    return {name: statistics.median(rates[warm:]) for name, rates in samples.items()}


def _stream(spark: SparkSession, server: Server, schema: str | None, **options: int) -> DataFrame:
    reader = spark.read.format("durable-streams").options(url=server.url, streams="messages", **options)
    return (reader.schema(schema) if schema else reader).load()


def _read(bench: Bench, spark: SparkSession, server: Server, text: Path) -> None:
    what = "catch-up of 5 M messages"
    spark.dataSource.register(ReadyBatches)
    tasks = _stream(spark, server, "value STRING").rdd.getNumPartitions()

    def ready(**options: str) -> DataFrame:
        return spark.read.format("ready-batches").options(rows=MESSAGES, partitions=tasks, **options).load()

    rates = _in_turns(
        {
            "spark.read.text": lambda: _to_nothing(spark.read.text(str(text))),
            "ready batches": lambda: _to_nothing(ready()),
            "ready batches, bytes received": lambda: _to_nothing(ready(url=server.url)),
            "headwater": lambda: _to_nothing(_stream(spark, server, "value STRING")),
            "headwater, all columns": lambda: _to_nothing(_stream(spark, server, None)),
        },
        MESSAGES,
    )
    base, text_rate = rates["ready batches"], rates["spark.read.text"]
    bench.note(Row(what, "ready batches", base, "rows/s", None, "", f"a source of Arrow batches, {tasks} tasks"))
    received = rates["ready batches, bytes received"]
    note = "receives the bytes of the stream without parsing them: the maximum over HTTP on these cores"
    bench.note(Row(what, "ready batches, bytes received", received, "rows/s", received / base, "", note))
    bench.note(
        Row(
            what,
            "headwater",
            rates["headwater"],
            "rows/s",
            rates["headwater"] / received,
            GOAL,
            "value alone, of bytes received",
        )
    )
    every = rates["headwater, all columns"]
    bench.note(Row(what, "headwater, all columns", every, "rows/s", every / base, "", "seven columns"))
    bench.note(Row(what, "spark.read.text", text_rate, "rows/s", text_rate / base, "", "a local file, one column"))


def _partitions(bench: Bench, spark: SparkSession, server: Server) -> None:
    """Reading does not get faster with more tasks, because one task already keeps two cores busy with the server, the
    Python worker and the JVM. Processing of the rows does."""

    def work(parts: int, parsed: bool) -> Callable[[], None]:
        def run() -> None:
            options = {"minPartitions": parts, "maxPartitionBytes": ALL_IN_ONE}
            rows = _stream(spark, server, "value STRING", **options)
            if parsed:
                rows = rows.selectExpr("from_json(value, 'id BIGINT, name STRING, pad STRING') AS row")
                rows = rows.groupBy(F.expr("row.id % 10")).agg(F.max("row.name"), F.max(F.length("row.pad")))
            _to_nothing(rows)

        return run

    for parsed, what in ((False, "catch-up"), (True, "catch-up with from_json")):
        works = {str(parts): work(parts, parsed) for parts in (1, 2, 4)}
        rates = _in_turns(works, MESSAGES, *((1, 3) if parsed else ()))
        for parts, rate in rates.items():
            name = f"{what}, {parts} partition{'s' if parts != '1' else ''}"
            ratio = rate / rates["1"] if parts != "1" else None
            note = "on 2 cores, parsed and aggregated" if parsed else "on 2 cores"
            bench.note(Row(name, "headwater", rate, "rows/s", ratio, "", note, f"{what}, by partitions"))


def _read_table(bench: Bench, spark: SparkSession, server: Server) -> None:
    """Compared with a stream of the same messages. A row also has a SeqNo, a time, an action and a key."""

    def table(schema: str | None) -> DataFrame:
        reader = spark.read.format("stp").options(url=server.url, table="messages")
        return (reader.schema(schema) if schema else reader).load()

    rates = _in_turns(
        {
            "durable-streams": lambda: _to_nothing(_stream(spark, server, "value STRING")),
            "stp, record alone": lambda: _to_nothing(table("record STRING")),
            "stp, all columns": lambda: _to_nothing(table(None)),
        },
        MESSAGES,
        1,
        3,
    )
    base = rates["durable-streams"]
    for name, rate in rates.items():
        ratio = rate / base if rate is not base else None
        bench.note(Row("catch-up of a table of 5 M rows", name, rate, "rows/s", ratio, "", ""))


def _write(bench: Bench, spark: SparkSession, server: Server, directory: Path) -> None:
    """Rows and keys are ready in memory, and nothing of one run is folded during the next: a run takes only its own
    time."""
    with uploading_server(str(directory)) as bare:
        spark.dataSource.register(Discarding)
        spark.dataSource.register(Uploading)
        changes = spark.range(0, WRITTEN, 1, 4).selectExpr(
            "cast(id AS string) AS key",
            "to_json(struct(id, concat('customer ', id) AS name, repeat('x', 50) AS pad)) AS record",
        )
        changes = changes.persist()
        changes.count()
        rows = changes.selectExpr("record AS value")

        def written(rows: DataFrame, sink: str, **options: str) -> Callable[[], None]:
            return lambda: rows.write.format(sink).options(**options).mode("append").save()

        works = {
            "headwater": written(rows, "durable-streams", url=server.url, stream="written"),
            "headwater, stp": written(changes, "stp", url=server.url, table="written"),
            "bytes uploaded": written(rows, "uploading", port=str(bare.port)),
            "rows discarded": written(rows, "discarding"),
            "rows discarded, with keys": written(changes, "discarding"),
            "parquet": lambda: rows.write.mode("overwrite").parquet(str(directory / "parquet")),
        }
        rates = _in_turns(works, WRITTEN, prepare=server.wait_until_folded)
        changes.unpersist()
    notes = {
        "headwater": "exactly once, synced, from memory",
        "headwater, stp": "exactly once, synced, from memory",
        "bytes uploaded": "a Python sink whose server stores each body with one write and sync: the floor over HTTP",
        "rows discarded": "a Python sink that drops the rows it receives",
        "rows discarded, with keys": "the same with the two columns of a table",
    }
    for name, note in notes.items():
        ratio, goal = rates[name] / rates["parquet"], SINK_GOALS.get(name, "")
        bench.note(Row("write 3 M rows", name, rates[name], "rows/s", ratio, goal, note))
    bench.note(Row("write 3 M rows", "local parquet", rates["parquet"], "rows/s", None, "", "not synced, from memory"))


def _idle(bench: Bench, spark: SparkSession, server: Server, directory: Path) -> None:
    with Client(server.url) as client:
        client.stream("quiet").create()

        def start(name: str, wait_s: float) -> object:
            return (
                spark.readStream.format("durable-streams")
                .options(url=server.url, streams="quiet", longPollTimeout=wait_s)
                .load()
                .select("value")
                .writeStream.format("durable-streams")
                .options(url=server.url, stream="echo", checkpointLocation=str(directory / name))
                .start()
            )

        query = start("restless", 0.001)
        until = time.monotonic() + 60
        while len(query.recentProgress) < 25 and time.monotonic() < until:  # type: ignore[attr-defined]
            time.sleep(1)
        spans = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[5:]]  # type: ignore[attr-defined]
        query.stop()  # type: ignore[attr-defined]
        bench.note(
            Row("an idle trigger", "headwater", statistics.median(spans), "ms", None, "", "without its wait for data")
        )

        query = start("patient", 0.5)
        client.stream("echo").create()
        delays = []
        for number in range(8):
            time.sleep(1)
            tail = client.stream("echo").head().tail_offset
            started = time.perf_counter()
            client.stream("quiet").append({"n": number})
            next(iter(client.stream("echo").read(offset=tail, live=True)))
            delays.append((time.perf_counter() - started) * 1000)
        query.stop()  # type: ignore[attr-defined]
        name = "append to reader through Spark"
        bench.note(
            Row(name, "headwater", statistics.median(delays[2:]), "ms", None, "", "one message, a batch of its own")
        )
