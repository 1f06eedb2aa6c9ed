"""The readers of both stream formats: planning in the driver, and reading in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from headwater.client import StreamInfo
from headwater.errors import (
    DataLossError,
    HeadwaterError,
    InvalidOffsetError,
    OffsetGoneError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.positions import Position, is_in_snapshot
from headwater.spark.bounds import Bounds
from headwater.spark.columns import RangeReader
from headwater.spark.options import SNAPSHOT, ReadOptions
from headwater.spark.planning import Planner, from_json, to_json
from headwater.spark.positions import StreamRange
from headwater.spark.querying import QueryReader, TaskInput
from headwater.spark.snapshots import find_snapshots, partitions
from headwater.spark.watching import TailWatcher
from headwater.spark.workers import freeze_imports, keep_memory

log = logging.getLogger(__name__)
_LOSSES = (StreamNotFoundError, StreamGoneError, OffsetGoneError, InvalidOffsetError, DataLossError)


class _Reading:
    """The work of a task, for batch and streaming. It is pickled, so it holds settings and no open resources."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskInput):
            return  # Spark's own partition, if there is nothing to read
        keep_memory()
        with self._options.open() as client:
            reader = RangeReader(self._options, client, self._schema)
            for part in partition.ranges:
                yield from self._read(reader, part)
        freeze_imports()

    def _read(self, reader: RangeReader, part: StreamRange) -> Iterator[pa.RecordBatch]:
        """Read a range. If data is lost and that is accepted, read what is left of it."""
        try:
            yield from reader.read(part)
        except _LOSSES as error:
            left = _left(part, error)
            end = part.end if left is None else left.start
            message = f"{part.path}: data between {part.start} and {end} is lost: {error}"
            if self._options.fail_on_data_loss:
                raise DataLossError(message) from error
            log.warning("%s", message)
        else:
            return
        if left is not None:
            yield from self._read(reader, left)


def _left(part: StreamRange, error: HeadwaterError) -> StreamRange | None:
    """What is left of a range whose beginning was trimmed after it was planned, or while it was read."""
    first = error.first_offset if isinstance(error, OffsetTrimmedError) else ""
    if part.snapshot_of is None and part.start.offset < first < part.end.offset and not is_in_snapshot(first):
        return msgspec.structs.replace(part, start=Position(first))
    return None


class BatchReader(_Reading, DataSourceReader):
    """The batch reader. It has no `pushFilters`: Spark 4.3 uses one reader for all uses of a DataFrame, so a filter on
    one of them would apply to the others. Use the options `streams`, `pattern` and `types` instead."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with options.open() as client:
            planner = Planner(options, client)
            tails = planner.check()
            bounds = Bounds(options, client, planner)
            start, end = bounds.start(tails), bounds.end(tails)
            bounds.check_order(start, end)
            snapshots = find_snapshots(options, client, end) if options.starting_offsets == SNAPSHOT else {}
            return [TaskInput(ranges) for ranges in partitions(planner, start, end, snapshots)]


class StreamReader(_Reading, QueryReader["_Driver"]):
    def _open(self) -> _Driver:
        return _Driver(self._options)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        here = self._here
        return to_json(Bounds(self._options, here.client, here.planner).start(here.planner.check()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        here = self._here
        limited = not isinstance(limit, ReadAllAvailable)
        ends = self._final if self._final is not None else here.look()
        end = to_json(here.planner.advance(from_json(start), ends, limited=limited))
        if end == start and self._final is None:
            growing = {path: info.tail_offset for path, info in ends.items() if not info.closed}
            here.watcher.wait(growing, self._options.long_poll_timeout)
            end = to_json(here.planner.advance(from_json(start), here.look(), limited=limited))
        return start if end == start else end

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        return {path: info.tail_offset for path, info in sorted(self._here.seen.items())} or None

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        tasks = self._here.planner.partitions(from_json(start), from_json(end))
        return [TaskInput(ranges) for ranges in tasks]


class _Driver:
    def __init__(self, options: ReadOptions) -> None:
        self.client = options.open()
        self.planner = Planner(options, self.client)
        self.watcher = TailWatcher(self.client)
        self.seen: dict[str, StreamInfo] = {}

    def look(self) -> dict[str, StreamInfo]:
        self.seen = self.planner.tails()
        return self.seen
