"""A query from streams to streams, as a separate program that can be killed.

python -m tests.spark.pipe MASTER CHECKPOINT SEED URL: every stream below `src/` to its namesake below `dst/`, all that
there is now. Tasks fail at their first attempt as the seed decides.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

import headwater.spark


def main(master: str, checkpoint: str, seed: str, url: str) -> None:
    spark = headwater.spark.session("pipe", master=master)
    spark.sparkContext.setLogLevel("OFF")

    def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        place = f"{seed} {context.getLocalProperty('streaming.sql.batchId')} {context.partitionId()}"
        fails = context.attemptNumber() == 0 and random.Random(place).random() < 0.3
        for batch in batches:
            yield batch
            if fails:
                raise RuntimeError("this task was to fail")

    rows = (
        spark.readStream.format("durable-streams")
        .options(url=url, pattern="src/*", maxRecordsPerTrigger=600, minPartitions=4)
        .load()
        .selectExpr("regexp_replace(stream, '^src', 'dst') AS stream", "value")
    )
    query = (
        rows.mapInArrow(flaky, rows.schema)
        .writeStream.format("durable-streams")
        .options(url=url, checkpointLocation=checkpoint, maxRequestBytes=4000)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
