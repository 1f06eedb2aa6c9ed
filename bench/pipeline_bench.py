"""The pipeline jobs: state events to a table on each path, compared with the same upserts by plain Spark."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from headwater.client import Client
from headwater.pipeline import archive, materialize
from headwater.spark import current_state, session

EVENTS, KEYS = 5_000_000, 500_000
PLAIN = "plain Spark to Parquet"
STEP = 20_000
STATES = (10_000, 100_000, 1_000_000)  # keys that a table has before a batch
BUCKETS, BATCH_KEYS, BATCHES = 1_024, 1_000, 5
GOAL = ">= 4"  # of plain Spark's upsert
ARCHIVE_GOAL = ">= 0.8"
BATCH_GOAL = "<= 1,000"  # ms, for random keys in the largest table


def run_pipeline(bench: Bench) -> None:
    with _started() as (spark, server, directory):
        _append(server, "state", _events(EVENTS, KEYS))
        _archive(bench, spark, server, directory)
        _materialize(bench, spark, server, directory)
        _growth(bench, spark, server, directory)


def run_archive(bench: Bench) -> None:
    """This and the next two are the parts of the bench with goals, each of which takes a few minutes."""
    with _started() as (spark, server, directory):
        _append(server, "state", _events(EVENTS, KEYS))
        _archive(bench, spark, server, directory)


def run_upsert(bench: Bench) -> None:
    with _started() as (spark, server, directory):
        _append(server, "state", _events(EVENTS, KEYS))
        _materialize(bench, spark, server, directory, ("read only", PLAIN, "buckets"))


def run_batches(bench: Bench) -> None:
    with _started() as (spark, server, directory):
        _growth(bench, spark, server, directory, STATES[-1:])


@contextlib.contextmanager
def _started() -> Iterator[tuple[SparkSession, Server, Path]]:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        directory = Path(name)
        with headwater("--data-dir", str(directory / "data")) as server:
            config = {"spark.driver.memory": "4g"}
            spark = session("bench", master="local[2]", config=config)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield spark, server, directory
            finally:
                spark.stop()


def _events(count: int, keys: int) -> Iterator[bytes]:
    chance = random.Random(15)
    for number in range(count):
        yield _event(chance.randrange(keys), number)


def _event(key: int, number: int) -> bytes:
    value = b'{"id":%d,"name":"customer %d","n":%d}' % (key, key, number)
    return b'{"type":"t","key":"key %d","value":%s,"headers":{"operation":"upsert"}}' % (key, value)


def _append(server: Server, path: str, events: Iterator[bytes]) -> None:
    with Client(server.url) as client:
        stream = client.stream(path, content_type="application/json")
        stream.create()
        while some := list(itertools.islice(events, STEP)):
            stream.append_body(b"[" + b",".join(some) + b"]")
    server.wait_until_folded()


def _took_s(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _archive(bench: Bench, spark: SparkSession, server: Server, directory: Path) -> None:
    """Compared with the same rows, read by the same source and written as Parquet by Spark."""
    numbers = itertools.count()
    schema = "stream STRING, offset STRING, `order` BIGINT, timestamp TIMESTAMP_LTZ, content_type STRING, value BINARY"

    def to_parquet() -> None:
        reader = spark.read.format("durable-streams").options(url=server.url, streams="state", valueType="binary")
        reader.schema(schema).load().write.mode("overwrite").parquet(str(directory / "parquet"))

    def to_archive() -> None:
        table = str(directory / f"archive{next(numbers)}")
        archive(spark, url=server.url, streams="state", table=table, once=True).wait()

    works = {"plain Spark to Parquet": to_parquet, "archive": to_archive}
    rates = {name: max(EVENTS / _took_s(work) for _ in range(3)) for name, work in works.items()}
    base = rates["plain Spark to Parquet"]
    what = "archive 5 M messages"
    bench.note(Row(what, "plain Spark to Parquet", base, "rows/s", None, "", "the same columns, not synced"))
    bench.note(
        Row(
            what, "archive", rates["archive"], "rows/s", rates["archive"] / base, ARCHIVE_GOAL, "a Delta table, by date"
        )
    )


def _materialize(
    bench: Bench, spark: SparkSession, server: Server, directory: Path, only: Collection[str] = ()
) -> None:
    numbers = itertools.count()

    def read(kind: str, schema: str | None = None) -> DataFrame:
        reader = spark.read.format(kind).options(url=server.url, streams="state", minPartitions=4)
        return (reader.schema(schema) if schema else reader).load()

    def to_nothing() -> None:
        read("stream-state").write.format("noop").mode("overwrite").save()

    def run(**options: Any) -> Callable[[], None]:
        def run() -> None:
            table = str(directory / f"table{next(numbers)}")
            job = materialize(spark, url=server.url, streams="state", table=table, once=True, **options)
            job.wait()

        return run

    def by_spark() -> None:
        """The same without the job: the newest event of each key, written to Parquet files."""
        current_state(read("stream-state")).write.mode("overwrite").parquet(str(directory / "parquet"))

    what = "materialize 5 M events over 500 k keys"
    typed = {"schema": "id BIGINT, name STRING, n BIGINT", "type": "t"}
    works = {
        "read only": to_nothing,
        PLAIN: by_spark,
        "buckets": run(path="buckets"),
        "buckets, with a schema": run(path="buckets", **typed),
        "buckets, by sequence": run(path="buckets", **typed, sequence_by="n"),
        "buckets, history": run(path="buckets", stored_as_scd_type=2),
        "merge": run(path="merge", max_bytes=16 * 1024 * 1024),
    }
    rates = {}
    for name, work in works.items():
        if only and name not in only:
            continue
        runs = [EVENTS / _took_s(work) for _ in range(1 if name == "merge" else 2)]
        rates[name] = max(runs)
    base = rates[PLAIN]
    for name, rate in rates.items():
        goal = GOAL if name == "buckets" else ""
        note = {PLAIN: "all events at once, no later batch", "merge": "batches of 16 MiB"}.get(name, "")
        bench.note(Row(what, name, rate, "events/s", rate / base if rate is not base else None, goal, note))


def _growth(bench: Bench, spark: SparkSession, server: Server, directory: Path, states: Sequence[int] = STATES) -> None:
    """The time of a batch in tables of increasing size: with keys in 16 buckets, and with keys in all buckets."""
    for keys in states:
        path = f"state-{keys}"
        _append(server, path, (_event(key, 0) for key in range(keys)))
        table = str(directory / path)
        materialized = partial(
            materialize, spark, url=server.url, streams=path, table=table, buckets=BUCKETS, path="buckets", once=True
        )
        materialized().wait()
        for name, chosen in (
            ("16 buckets", _in_few_buckets(spark, path)),
            ("all buckets", range(0, keys, keys // BATCH_KEYS)),
        ):
            spans = []
            for number in range(BATCHES):
                with Client(server.url) as client:
                    body = b",".join(_event(key, number + 1) for key in chosen)
                    client.stream(path, content_type="application/json").append_body(b"[" + body + b"]")
                job = materialized()
                job.wait()
                spans.append(job.query.recentProgress[-1]["durationMs"]["addBatch"])
            title = f"a batch of 1,000 events, {keys:,} keys"
            panel = f"a batch in {name}, by size of the table"
            goal = BATCH_GOAL if name == "all buckets" and keys == STATES[-1] else ""
            bench.note(Row(title, name, statistics.median(spans), "ms", None, goal, "", panel))


def _in_few_buckets(spark: SparkSession, path: str) -> list[int]:
    """Keys of the table in 16 of its buckets, as many as a batch has."""
    hashed = f"pmod(xxhash64('{path}', 't', concat('key ', id)), {BUCKETS})"
    keys = int(path.rpartition("-")[2])
    ids = [row.id for row in spark.range(keys).where(f"{hashed} < 16").limit(BATCH_KEYS).collect()]
    return list(itertools.islice(itertools.cycle(ids), BATCH_KEYS))
