"""A query as a job: progress, failure, and stop after a batch."""

from __future__ import annotations

import threading

import pytest
from bench.servers import Server
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client
from headwater.errors import JobConflictError, SchemaError
from headwater.pipeline.running import StreamingJob, Work, start_query


@pytest.fixture
def numbers(spark: SparkSession, server: Server, client: Client, path: str) -> DataFrame:
    client.stream(path).create(messages=list(range(10)))
    source = spark.readStream.format("durable-streams").options(url=server.url, streams=path, maxRecordsPerTrigger=5)
    return source.load()


def _start(rows: DataFrame, work: Work, checkpoint: str, *, once: bool = True) -> StreamingJob:
    return start_query(rows, work, name="test", checkpoint=checkpoint, once=once)


def test_a_job_that_runs_once_reports_its_rows(numbers: DataFrame, checkpoint: str, path: str) -> None:
    ids = set()

    def work(rows: DataFrame, number: int, job_id: str) -> None:
        ids.add(job_id)
        rows.collect()

    job = _start(numbers, work, checkpoint)
    assert job.wait()
    progress = job.progress()
    assert (progress.batches, progress.rows, progress.lag_bytes) == (2, 10, {path: 0})
    assert ids == {job.query.id}


def test_a_stop_waits_for_the_current_batch(numbers: DataFrame, checkpoint: str) -> None:
    begun, release, done = threading.Event(), threading.Event(), []

    def work(rows: DataFrame, number: int, job_id: str) -> None:
        begun.set()
        release.wait(30)
        done.append((number, rows.count()))

    job = _start(numbers, work, checkpoint, once=False)
    begun.wait(30)
    with pytest.raises(JobConflictError, match="another run"):
        _start(numbers, work, checkpoint)
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    was_active = job.is_active
    release.set()
    stopping.join(30)
    assert job.wait()
    assert (was_active, job.is_active) == (True, False)
    assert done[0] == (0, 5)
    _start(numbers, work, checkpoint).wait()
    assert dict(done) == {0: 5, 1: 5}


def test_a_batch_that_fails_raises_its_own_error(numbers: DataFrame, checkpoint: str) -> None:
    def work(rows: DataFrame, number: int, job_id: str) -> None:
        raise SchemaError("no")

    job = _start(numbers, work, checkpoint)
    with pytest.raises(SchemaError, match="no"):
        job.wait()
