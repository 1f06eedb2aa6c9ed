"""The jobs of the pipeline as a type checker sees them: arguments are the options. This file is checked, never run."""

from __future__ import annotations

from datetime import datetime
from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

from headwater.pipeline import archive, materialize, publish, replay, snapshot
from headwater.pipeline.running import LoopJob, StreamingJob

URL = "http://127.0.0.1:4437"


def jobs(spark: SparkSession, rows: DataFrame, start: datetime, scd: int | str, path: str) -> None:
    assert_type(archive(spark, url=URL, streams="a/*", table="t", starting_timestamp=start, once=True), StreamingJob)
    assert_type(archive(spark, url=URL, streams="a", table="t", headers={"a": "b"}, retain_hours=None), StreamingJob)
    assert_type(replay(spark, url=URL, table="t", to="copy", allow_gaps=True, name="again"), LoopJob)
    assert_type(
        materialize(spark, url=URL, streams="a", table="t", keys=("a", "b"), stored_as_scd_type=scd, path=path),
        StreamingJob,
    )
    assert_type(publish(spark, url=URL, rows=rows, keys=["k"], to="s", type="t"), LoopJob | StreamingJob)
    assert_type(snapshot(spark, url=URL, streams="a", every_s=5, token_function="m:f"), LoopJob)


def mistakes(spark: SparkSession) -> None:
    archive(spark, url=URL, streams="a", tabel="t")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    archive(spark, url=URL, streams="a")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    snapshot(spark, url=URL, streams=["a"])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
