"""Makes snapshots of state streams, from which new readers start. `headwater.state.bootstrap` defines their format.

A task makes each snapshot from the previous one and the events since then. A snapshot is valid once it is closed, so a
killed run leaves nothing that a reader would use.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater import limits
from headwater.client import Client, StreamInfo
from headwater.errors import OptionError, StreamGoneError, StreamNotFoundError
from headwater.log.content import ContentKind, kind_of
from headwater.pipeline.options import SnapshotOptions
from headwater.pipeline.running import LoopJob, Step, start_loop
from headwater.pipeline.sources import JobSource, is_pattern
from headwater.positions import byte_position, incarnation
from headwater.spark.connection import ConnectionOptions
from headwater.state.bootstrap import SNAPSHOTS, newest_first
from headwater.state.sync.streamdb import publish_snapshot


def start(spark: SparkSession, options: SnapshotOptions) -> LoopJob:
    """Start the job."""
    source = JobSource(options)
    source.check()
    snapshots = _Snapshots(spark, source, options)
    return start_loop(snapshots.steps, name=options.label, once=options.once, every_s=options.every_s)


class _Snapshots:
    def __init__(self, spark: SparkSession, source: JobSource, options: SnapshotOptions) -> None:
        self._spark = spark
        self._source = source
        self._options = options

    def steps(self) -> Iterator[Step]:
        paths = list(self._wanted())
        maker = SnapshotMaker(self._source.reading(), self._options.min_bytes, self._options.grace_s)
        for first in range(0, len(paths), limits.PIPELINE_SNAPSHOTS_AT_ONCE):
            group = paths[first : first + limits.PIPELINE_SNAPSHOTS_AT_ONCE]
            rows = self._spark.createDataFrame([(path,) for path in group], "stream STRING")
            parts = rows.repartition(min(len(group), self._spark.sparkContext.defaultParallelism * 2))
            done = parts.mapInArrow(maker, "stream STRING, made BOOLEAN, lag BIGINT").collect()
            yield Step(rows=sum(row.made for row in done), lag_bytes={row.stream: row.lag for row in done})

    def _wanted(self) -> Iterator[str]:
        self._source.check_streams()
        for path, info in self._source.tails().items():
            if kind_of(info.content_type) is ContentKind.JSON:
                yield path
            elif not is_pattern(self._options.streams):
                raise OptionError(f"{path} is a stream of {info.content_type}; state events are JSON")


class SnapshotMaker:
    """Makes the snapshots of the streams whose paths are in the rows. Pickled for the tasks."""

    def __init__(self, connection: ConnectionOptions, min_bytes: int, grace_s: float) -> None:
        self._connection = connection
        self._min_bytes = min_bytes
        self._grace_s = grace_s

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._connection.open() as client:
            for batch in batches:
                done = [(path, *self.make(client, path)) for path in batch["stream"].to_pylist()]
                columns = dict(zip(("stream", "made", "lag"), zip(*done, strict=True), strict=True)) if done else {}
                if columns:
                    yield pa.RecordBatch.from_pydict({name: list(values) for name, values in columns.items()})

    def make(self, client: Client, path: str) -> tuple[bool, int]:
        """Whether a snapshot was made, and the number of bytes after the newest one."""
        stream = client.stream(path)
        try:
            tail = stream.head().tail_offset
            behind = behind_newest(client, path, tail)
            is_due = behind >= self._min_bytes
            if is_due:
                publish_snapshot(stream, tail)
        except (StreamNotFoundError, StreamGoneError):
            return False, 0  # deleted meanwhile
        self._clean(client, path)
        return is_due, 0 if is_due else behind

    def _clean(self, client: Client, path: str) -> None:
        """Delete superseded and unfinished snapshots after the grace time."""
        snapshots = sorted(client.list(f"{path}{SNAPSHOTS}"), key=lambda info: info.path)
        for number, info in enumerate(snapshots):
            later = next((one for one in snapshots[number + 1 :] if one.closed), None)
            since = later if info.closed else info
            if since is not None and self._is_over(since):
                client.stream(info.path).delete()

    def _is_over(self, info: StreamInfo) -> bool:
        if info.created_at is None:
            return False
        return datetime.now(UTC) - datetime.fromisoformat(info.created_at) >= timedelta(seconds=self._grace_s)


def behind_newest(client: Client, path: str, tail: str) -> int:
    """The number of bytes of a stream that are not in its newest snapshot."""
    newest = next(iter(newest_first(client.list(f"{path}{SNAPSHOTS}"), path)), None)
    end = byte_position(tail) or 0
    if newest is None or incarnation(newest[1]) != incarnation(tail):
        return end
    return max(0, end - (byte_position(newest[1]) or 0))
