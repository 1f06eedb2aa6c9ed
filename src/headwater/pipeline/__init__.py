"""The jobs of a data pipeline over streams: archive, replay, materialize, publish and snapshot.

Each function takes a Spark session and, as keyword arguments, the fields of its struct in `headwater.pipeline.options`.
It returns a running `Job`. Spark is imported when the first job starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipeline.jobs import Job, JobProgress, with_options
from headwater.pipeline.options import (
    ArchiveOptions,
    MaterializeOptions,
    PublishOptions,
    ReplayOptions,
    SnapshotOptions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipeline.running import LoopJob, StreamingJob

__all__ = ["Job", "JobProgress", "archive", "materialize", "publish", "replay", "snapshot"]


@with_options(ArchiveOptions)
def archive(spark: SparkSession, options: ArchiveOptions) -> StreamingJob:
    """Store every message of the matching streams as a row of a Delta table, which is created if it does not exist.

    After every `compact_every` batches small files are merged, and files that no version younger than `retain_hours`
    needs are deleted (None: never). With `compact_every=0` neither is done.
    """
    from headwater.pipeline.archiving import start

    return start(spark, options)


@with_options(ReplayOptions)
def replay(spark: SparkSession, options: ReplayOptions) -> LoopJob:
    """Write the matching streams of an archive to a server: to their own paths, or below `to`.

    Of a stream that was deleted and created again, the last archived incarnation is written. If the archive lacks rows
    of any of the streams, nothing is written, unless `allow_gaps` is set: then the rows that exist are written.
    """
    from headwater.pipeline.replaying import start

    return start(spark, options)


@with_options(MaterializeOptions)
def materialize(spark: SparkSession, options: MaterializeOptions) -> StreamingJob:
    """Keep a Delta table of the entities of state streams. It is created if it does not exist.

    The table has the current state (`stored_as_scd_type=1`) or the history (2). Events that cannot be applied go to the
    table `{table}.quarantine`, with the reason. With `sequence_by`, an expression over the columns, the event with the
    greatest sequence wins instead of the last event.

    Each batch rewrites the buckets of the table that have events, up to all of them, so there is at most one batch in
    `every_s`. `buckets` is the number of buckets of a new table, by default chosen by the size of the streams.

    After every `compact_every` batches small files are merged, and files and log entries that no version younger than
    `retain_hours` needs are deleted (None: never). With `compact_every=0` neither is done.
    """
    from headwater.pipeline.materializing.job import start

    return start(spark, options)


@with_options(PublishOptions)
def publish(spark: SparkSession, options: PublishOptions) -> LoopJob | StreamingJob:
    """Publish the versions of a Delta table, or the rows of a streaming DataFrame.

    The columns `keys` are the key. The value is made from the other columns or `columns`, or is the JSON text in
    `value_column`. Rows of a query are upserts, or deletes if the SQL expression `apply_as_deletes` is true.
    """
    from headwater.pipeline.publishing import start

    return start(spark, options)


@with_options(SnapshotOptions)
def snapshot(spark: SparkSession, options: SnapshotOptions) -> LoopJob:
    """Make a snapshot of each stream that has grown by `min_bytes` since its last one.

    Older snapshots are deleted `grace_s` seconds after the next one was made.
    """
    from headwater.pipeline.snapshots import start

    return start(spark, options)
