"""Streams to streams on a cluster, with a task so slow that Spark starts it twice.

python -m tests.spark.cluster URL MASTER CHECKPOINT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

import headwater.spark

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


def main(url: str, master: str, checkpoint: str) -> None:
    config = {**SPECULATION, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = headwater.spark.session("cluster", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")

    def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(90)  # until it is killed, since the other attempt was done first

    rows = (
        spark.readStream.format("durable-streams")
        .options(url=url, streams="cluster/src", minPartitions=4)
        .load()
        .select("value")
    )
    query = (
        rows.mapInArrow(slow_once, rows.schema)
        .writeStream.format("durable-streams")
        .options(url=url, stream="cluster/dst", checkpointLocation=checkpoint, maxRequestBytes=20_000)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
