"""The readers of tables: planning in the driver, and reading in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from headwater.errors import DataLossError, HistoryChangedError, OptionError, StreamGoneError, StreamNotFoundError
from headwater.spark.querying import QueryReader, TaskInput
from headwater.spark.tables.options import TableReadOptions
from headwater.spark.tables.places import RowRange, from_json, to_json
from headwater.spark.tables.planning import TableEnd, TablePlanner
from headwater.spark.tables.reading import RowRangeReader
from headwater.spark.watching import TableWatcher
from headwater.spark.workers import freeze_imports, keep_memory

log = logging.getLogger(__name__)


class _Reading:
    """The work of a task, for batch and streaming. It is pickled, so it holds settings and no open resources."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskInput):
            return  # Spark's own partition, if there is nothing to read
        keep_memory()
        options, [part] = self._options, partition.ranges
        with options.open() as client:
            reader = RowRangeReader(options, client, options.table, self._schema)
            try:
                yield from reader.read(part)
            except (StreamNotFoundError, StreamGoneError, HistoryChangedError, DataLossError) as error:
                message = f"{options.table}: rows between {part.since + 1} and {part.until} are lost: {error}"
                if options.fail_on_data_loss:
                    raise DataLossError(message) from error
                log.warning("%s", message)
        freeze_imports()


class TableBatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with options.open() as client:
            planner = TablePlanner(options, client)
            tail = planner.tail()
            if options.is_active:
                return [TaskInput([RowRange(tail.table_type, tail.gapless, 0, tail.place.seqno, active=True)])]
            start, end = planner.start(tail), planner.end(tail)
            if end.seqno < start.seqno and not isinstance(options.ending_seq_no, str):
                raise OptionError(
                    f"endingSeqNo {options.ending_seq_no} is before startingSeqNo {options.starting_seq_no}"
                )
            return [TaskInput([part]) for part in planner.partitions(start, end)]


class TableStreamReader(_Reading, QueryReader["_Driver"]):
    def _open(self) -> _Driver:
        return _Driver(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._here.planner
        return to_json(planner.start(planner.tail()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        here = self._here
        limited = not isinstance(limit, ReadAllAvailable)
        if self._final is not None:
            return here.advance(start, self._final, limited=limited)
        tail = here.look()
        end = here.advance(start, tail, limited=limited)
        if end == start:
            ends = {} if tail is None else {self._options.table: str(tail.place.seqno)}
            here.watcher.wait(ends, self._options.long_poll_timeout)
            end = here.advance(start, here.look(), limited=limited)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        seen = self._here.seen
        return None if seen is None else to_json(seen.place)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self._here.planner.partitions(from_json(start), from_json(end))
        return [TaskInput([part]) for part in ranges]


class _Driver:
    def __init__(self, options: TableReadOptions) -> None:
        self.client = options.open()
        self.planner = TablePlanner(options, self.client)
        self.watcher = TableWatcher(self.client)
        self.seen: TableEnd | None = None

    def look(self) -> TableEnd | None:
        tail = self.planner.find_tail()
        self.seen = tail or self.seen
        return tail

    def advance(self, start: dict[str, Any], tail: TableEnd | None, *, limited: bool) -> dict[str, Any]:
        """The end of the next batch; `start` unchanged if there is no new data, because Spark compares them as text."""
        if tail is None:
            return start
        before = from_json(start)
        end = self.planner.advance(before, tail, limited=limited)
        return start if end == before else to_json(end)
