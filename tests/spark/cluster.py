"""Streams to streams, or to an archive, on a cluster with a task so slow that Spark starts it twice.

python -m tests.spark.cluster URL MASTER CHECKPOINT
python -m tests.spark.cluster URL MASTER CHECKPOINT TABLE
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import headwater.spark
from headwater.pipeline import archive, archiving
from headwater.pipeline.lake import Lake
from headwater.spark.options import read_options

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",  # Spark sees no rows of a Python source until they are read
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
}


def main(url: str, master: str, checkpoint: str, *table: str) -> None:
    config = {**SPECULATION, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = headwater.spark.session("cluster", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    if table:
        _archive(spark, url, checkpoint, *table)
    else:
        _copy(spark, url, checkpoint)


def _slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(90)  # until it is killed, since the other attempt was done first


def _copy(spark: SparkSession, url: str, checkpoint: str) -> None:
    rows = (
        spark.readStream.format("durable-streams")
        .options(url=url, streams="cluster/src", minPartitions=4)
        .load()
        .select("value")
    )
    query = (
        rows.mapInArrow(_slow_once, rows.schema)
        .writeStream.format("durable-streams")
        .options(url=url, stream="cluster/dst", checkpointLocation=checkpoint, maxRequestBytes=20_000)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class SlowReader(archiving.ArchiveReader):
    """Its first attempt at a task has written its files before it is slow."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _slow_once(super().read(partition))


class SlowFormat(archiving.ArchiveFormat):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        texts = {name: text for name, text in self.options.items() if name.lower() != "archive"}
        options = read_options({**texts, "minPartitions": "4"}, bounded=False, state=False)
        return SlowReader(options, Lake(self.options["archive"]))


def _archive(spark: SparkSession, url: str, checkpoint: str, table: str) -> None:
    archiving.ArchiveFormat = SlowFormat  # type: ignore[misc]
    archive(spark, url=url, streams="cluster/src", table=table, checkpoint=checkpoint, once=True).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
