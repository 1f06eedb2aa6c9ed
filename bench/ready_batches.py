"""A Spark source that yields prepared Arrow batches: the maximum rate of the Python data source API.

With the option `url` each task first receives the bytes of a stream and does not parse them: the maximum rate of a
source that receives its messages over HTTP from a server on the same machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headwater.client import Client
from headwater.client.fetching import fetch
from headwater.spark.connection import ConnectionOptions

BATCH = 64 * 1024


class ReadyBatches(DataSource):
    """Messages of 100 bytes: the option `rows` is how many, `partitions` for how many tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> str:
        return "value STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["partitions"]), self.options.get("url"))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, parts: int, url: str | None) -> None:
        self._rows = rows
        self._parts = parts
        self._url = url

    def partitions(self) -> Sequence[InputPartition]:
        if self._url is None:
            return [InputPartition(number) for number in range(self._parts)]
        with Client(self._url) as client:
            cut = client.stream("messages").splits(parts=self._parts)
        places = [cut.offset, *cut.splits, cut.until]
        return [InputPartition(pair) for pair in itertools.pairwise(places)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // self._parts
        ready = pa.RecordBatch.from_pydict({"value": pa.array(["x" * 100] * BATCH, pa.string())})
        if self._url is not None:
            connection = ConnectionOptions(url=self._url)
            with Client(self._url) as client:
                url = client.stream("messages").url
            for body, _ in fetch(connection, url, *partition.value):
                rows = min(left, len(body) // 101)
                yield from (ready.slice(0, min(BATCH, rows - first)) for first in range(0, rows, BATCH))
                left -= rows
        while left:
            yield ready.slice(0, min(left, BATCH))
            left -= min(left, BATCH)


class Discarding(DataSource):
    """A sink that receives all rows and drops them: the maximum of the Python data source API."""

    @classmethod
    def name(cls) -> str:
        return "discarding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DiscardingWriter()


class _DiscardingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
