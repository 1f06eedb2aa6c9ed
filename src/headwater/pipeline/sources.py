"""The source of a job: streams by name or pattern, and where to start."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client, StreamInfo
from headwater.errors import (
    ForbiddenError,
    MethodNotAllowedError,
    OffsetGoneError,
    OptionError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownRouteError,
)
from headwater.pipeline.connecting import check_server, format_options
from headwater.pipeline.options import StreamsOptions, TableOptions
from headwater.positions import byte_position, is_in_snapshot
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Planner
from headwater.spark.positions import StreamPlace


class JobSource(msgspec.Struct, frozen=True):
    """The streams that a job reads."""

    options: StreamsOptions

    def __repr__(self) -> str:
        return f"Source({self.options.streams!r} of {self.options.url!r})"

    def rows(
        self, spark: SparkSession, kind: str, *, is_first: bool, schema: str | None = None, **more: Any
    ) -> DataFrame:
        """The streams as a streaming DataFrame. The starting position is used only at the first start.

        Before that, the format is asked for its own schema too. Spark's Python then fails here, before anything is
        created, if it does not have Headwater.
        """
        options = {**self._options(), **more}
        if is_first:
            options |= self._start()
        reader = spark.readStream.format(kind).options(**options)
        if schema is None:
            return reader.load()
        if is_first:
            reader.load()
        return reader.schema(schema).load()

    def check(self) -> None:
        """Raise an error if the connection cannot work, before anything is created."""
        check_server(self.options)
        read_options({**self._options(), **self._start()}, bounded=False)

    def reading(self) -> ReadOptions:
        return read_options(self._options(), bounded=False, state=False)

    def tails(self, *, patient: bool = True) -> dict[str, StreamInfo]:
        """Every selected stream with its current tail."""
        options = self.reading()
        with options.open(patient=patient) as client:
            return Planner(options, client).tails()

    def tails_after(self, places: Mapping[str, StreamPlace]) -> dict[str, StreamInfo]:
        """The same, if the server still has what a query has read up to these places. Otherwise DataLossError, unless
        data loss is accepted."""
        options = self.reading()
        with options.open() as client:
            planner = Planner(options, client)
            tails = planner.tails()
            planner.advance(places, tails, limited=False)
            return tails

    def counts_bytes(self, paths: Iterable[str]) -> bool | None:
        """Whether the offsets of the server count stored bytes; None if none of the streams exists."""
        options = self.reading()
        with options.open() as client:
            return Planner(options, client).is_extended(paths)

    def size(self) -> int:
        """The bytes in the selected streams, as far as their offsets count bytes."""
        return sum(byte_position(info.tail_offset) or 0 for info in self.tails().values())

    def check_streams(self) -> None:
        """Raise an error if a named stream does not exist, before anything is created."""
        missing = [] if is_pattern(self.options.streams) else sorted({*self.reading().streams} - self.tails().keys())
        if missing:
            raise StreamNotFoundError(f"no stream at {', '.join(missing)}")

    def first_offset(self, path: str) -> str | None:
        """The first offset of a stream, if the server lists its streams, and lists them for the token."""
        with self.client() as client:
            try:
                return next((info.first_offset for info in client.list(path) if info.path == path), None)
            except (StreamNotFoundError, UnknownRouteError, MethodNotAllowedError, ForbiddenError):
                return None

    def beginning(self, info: StreamInfo) -> str | None:
        """Where the data of a stream itself begins: after the snapshot of a compacted one."""
        if info.first_offset is None or not is_in_snapshot(info.first_offset):
            return info.first_offset
        with self.client() as client:
            try:
                return client.stream(info.path).splits(offset=info.first_offset, parts=1).snapshot_next
            except (StreamNotFoundError, StreamGoneError, OffsetGoneError):  # since it was listed
                return None

    def client(self) -> Client:
        return self.reading().open()

    def _options(self) -> dict[str, str]:
        options = self.options
        texts = {**format_options(options), "pattern" if is_pattern(options.streams) else "streams": options.streams}
        if isinstance(options, TableOptions):
            limits = {"maxRecordsPerTrigger": options.max_records, "maxBytesPerTrigger": options.max_bytes}
            texts |= {name: str(limit) for name, limit in limits.items() if limit is not None}
            texts["failOnDataLoss"] = str(options.fail_on_data_loss).lower()
        return texts

    def _start(self) -> dict[str, str]:
        options = self.options
        if not isinstance(options, TableOptions):
            return {}
        if options.starting_timestamp is None:
            return {} if options.starting_offsets is None else {"startingOffsets": options.starting_offsets}
        if options.starting_offsets is not None:
            raise OptionError("set either starting_offsets or starting_timestamp, not both")
        return {"startingTimestamp": str(math.ceil(moment_of(options.starting_timestamp).timestamp() * 1000))}


def is_pattern(streams: str) -> bool:
    return not streams.startswith("[") and bool(re.search(r"[*?\[]", streams))


def moment_of(time: datetime | str) -> datetime:
    """Parse a time. Without a time zone it is UTC."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        raise OptionError(f"a time must be written as 2026-11-15 or 2026-11-15T08:00:00Z, got {time!r}") from None
    if moment.tzinfo is None:
        if isinstance(time, datetime):
            raise OptionError("a datetime needs a time zone")
        moment = datetime.fromisoformat(f"{moment.isoformat()}+00:00")
    return moment
