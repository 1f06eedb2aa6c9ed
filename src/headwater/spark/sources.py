"""The readers of both formats: what Spark asks of the driver, and what it asks of a task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.client import StreamInfo
from headwater.errors import DataLossError, OffsetGoneError, OptionError, StreamGoneError, StreamNotFoundError
from headwater.spark.columns import RangeReader
from headwater.spark.options import ReadOptions
from headwater.spark.planning import Planner, from_json, to_json
from headwater.spark.positions import Range
from headwater.spark.watching import Watcher
from headwater.spark.workers import freeze_imports, keep_memory

log = logging.getLogger(__name__)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Part({self.ranges!r})"


class _Reading:
    """What a task does, in batches and streams alike. Pickled: it holds what it was told and nothing that is open."""

    def __init__(self, options: ReadOptions, schema: StructType, *, state: bool) -> None:
        self._options = options
        self._schema = schema
        self._state = state

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return  # Spark's own, where there are none
        keep_memory()
        with self._options.connection.open() as client:
            reader = RangeReader(
                self._options.connection,
                client,
                self._schema,
                state=self._state,
                bad_events=self._options.bad_events,
                dead_letters=self._options.dead_letters,
                by_type=isinstance(self._options.value_schema, dict),
                delete_values=self._options.delete_values,
            )
            for part in partition.ranges:
                try:
                    yield from reader.read(part)
                except (StreamNotFoundError, StreamGoneError, OffsetGoneError, DataLossError) as error:
                    told = f"{part.path}: some of what is between {part.start} and {part.end} is lost: {error}"
                    if self._options.fail_on_data_loss:
                        raise DataLossError(told) from error
                    log.warning("%s", told)
        freeze_imports()


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with options.connection.open() as client:
            planner = Planner(options, client)
            found = planner.check()
            start = planner.resolve(options.starting, found)
            end = planner.resolve(options.ending, found)
            for path, place in start.items():
                if end[path] < place and not isinstance(options.ending, str):
                    raise OptionError(f"{path} is to be read from {place} to {end[path]}, which is before it")
            return [Part(ranges) for ranges in planner.partitions(start, end)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver for as long as the query runs; tasks get a copy that only reads."""

    def __init__(self, options: ReadOptions, schema: StructType, *, state: bool) -> None:
        super().__init__(options, schema, state=state)
        self._driver: _Driver | None = None
        self._final: dict[str, StreamInfo] | None = None  # what there was when an availableNow run began

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None, "_final": None}

    @property
    def _here(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        planner = self._here.planner
        return to_json(planner.resolve(self._options.starting, planner.check()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        here = self._here
        limited = not isinstance(limit, ReadAllAvailable)
        ends = self._final if self._final is not None else here.look()
        end = to_json(here.planner.advance(from_json(start), ends, limited=limited))
        if end == start and self._final is None:
            growing = {path: info.tail_offset for path, info in ends.items() if not info.closed}
            here.watcher.wait(growing, self._options.wait_s)
            end = to_json(here.planner.advance(from_json(start), here.look(), limited=limited))
        return start if end == start else end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._final = self._here.look()

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        return {path: info.tail_offset for path, info in sorted(self._here.seen.items())} or None

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        found = self._here.planner.partitions(from_json(start), from_json(end))
        return [Part(ranges) for ranges in found]

    def commit(self, end: dict[str, str]) -> None:
        """Streams keep what was read: there is nothing to let go of."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.client.close()


class _Driver:
    """What the driver keeps open between triggers."""

    def __init__(self, options: ReadOptions) -> None:
        self.client = options.connection.open()
        self.planner = Planner(options, self.client)
        self.watcher = Watcher(self.client)
        self.seen: dict[str, StreamInfo] = {}

    def look(self) -> dict[str, StreamInfo]:
        self.seen = self.planner.tails()
        return self.seen
