"""A Spark source that yields batches that are ready: what the Python data source API can read at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

BATCH = 64 * 1024


class ReadyBatches(DataSource):
    """Messages of 100 bytes: the option `rows` is how many, `partitions` for how many tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> str:
        return "value STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["partitions"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, parts: int) -> None:
        self._rows = rows
        self._parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // self._parts
        ready = pa.RecordBatch.from_pydict({"value": pa.array(["x" * 100] * BATCH, pa.string())})
        while left:
            yield ready.slice(0, min(left, BATCH))
            left -= min(left, BATCH)
