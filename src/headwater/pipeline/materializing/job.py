"""The job `materialize`: keeps a Delta table of the current state of state streams, or of its history."""

from __future__ import annotations

import logging

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headwater import limits
from headwater.pipeline.checkpoints import beside, check_file_system, ends_of, has_begun, range_of
from headwater.pipeline.growth import GrowthWatch
from headwater.pipeline.lake import TableBatch, telling_conflicts
from headwater.pipeline.locations import absolute, check_apart, check_surroundings
from headwater.pipeline.materializing.applying import Applier
from headwater.pipeline.materializing.buckets import BucketResult, BucketWork, run_in_driver, run_in_tasks
from headwater.pipeline.materializing.cuts import BatchStart, Starts
from headwater.pipeline.materializing.events import EventColumns
from headwater.pipeline.materializing.layout import BUCKET, Layout
from headwater.pipeline.materializing.settings import MaterializeSettings, settings_of
from headwater.pipeline.materializing.tables import (
    Tables,
    buckets_for,
    files_of,
    group_of,
    has_change_feed,
    has_many_files,
    prepare,
    tables_at,
)
from headwater.pipeline.options import MaterializeOptions
from headwater.pipeline.running import StreamingJob, start_query
from headwater.pipeline.sources import JobSource
from headwater.pipeline.upkeep import TableUpkeep
from headwater.positions import byte_position, incarnation, is_in_snapshot

log = logging.getLogger(__name__)


def start(spark: SparkSession, options: MaterializeOptions) -> StreamingJob:
    """Start the job."""
    settings = settings_of(options)
    table = absolute(options.table)
    source = JobSource(options)
    place = beside(table, "checkpoint", options.checkpoint)
    tables = tables_at(table)
    check_apart({"the checkpoint": place, **tables.locations()})
    check_surroundings(table)
    source.check()
    check_file_system(spark, place)
    if not has_begun(place):
        source.check_streams()
    columns = EventColumns(settings)
    is_first = not has_begun(place)
    options_of_source = {**columns.source_options, **(_partitions(spark, columns, source) if is_first else {})}
    rows = source.rows(spark, "stream-state", is_first=is_first, schema=columns.source_schema, **options_of_source)
    layout = columns.layout(rows)
    if options.buckets is None and not tables.rows.exists():
        settings = msgspec.structs.replace(settings, buckets=buckets_for(source.size()))
    settings = prepare(tables, settings, layout, place)
    if options.buckets not in (None, settings.buckets):
        log.warning("%s has %d buckets; buckets=%d is for new tables", table, settings.buckets, options.buckets)
    upkeep = TableUpkeep(options.compact_every, options.retain_hours)
    growth = None
    if not options.once:
        retain_hours = options.retain_hours
        growth = GrowthWatch(table, buckets=settings.buckets, every_s=options.every_s, retain_hours=retain_hours)
    work = _Materializing(tables, settings, layout, place, upkeep, growth)
    return start_query(
        rows, work.work, name=options.label, checkpoint=place, once=options.once, every_s=options.every_s
    )


def _partitions(spark: SparkSession, columns: EventColumns, source: JobSource) -> dict[str, str]:
    """The source's option for one large task on each core, if tasks leave out replaced events: fewer events of a stream
    then remain, each of which costs Spark more than reading many. For the first start, which has the most to read."""
    context = spark.sparkContext
    if "latestOnly" not in columns.source_options or not str(context.master).startswith("local"):
        return {}  # of a cluster, more executors may come
    wanted = min(source.size(), limits.PIPELINE_BATCH_BYTES) // context.defaultParallelism
    size = min(max(wanted + wanted // 64, limits.SPARK_PARTITION_BYTES), limits.PIPELINE_PARTITION_BYTES_MAX)
    return {"maxPartitionBytes": str(size)}


class _Materializing:
    """Applies each batch, in the driver."""

    def __init__(
        self,
        tables: Tables,
        settings: MaterializeSettings,
        layout: Layout,
        checkpoint: str,
        upkeep: TableUpkeep,
        growth: GrowthWatch | None,
    ) -> None:
        self._tables = tables
        self._settings = settings
        self._layout = layout
        self._columns = EventColumns(settings)
        self._checkpoint = checkpoint
        self._upkeep = upkeep
        self._growth = growth
        self._applier: Applier | None = None
        self._group = group_of(tables, layout, checkpoint)

    def work(self, rows: DataFrame, number: int, job: str) -> None:
        spark, table = rows.sparkSession, self._group.open()
        batch = TableBatch(job, number, range_of(spark, self._checkpoint, number))
        before = range_of(spark, self._checkpoint, number - 1) if number else None
        self._group.check_before(table, batch, before)
        applier = self._applier
        if applier is None:
            applier = Applier(self._tables, self._layout)
            applier.check_owner(job)
        applier.check(batch, table)
        if batch.is_done(table):  # by the previous run, which was killed before Spark recorded it
            return
        self._applier = applier
        with telling_conflicts(self._tables.rows, batch):
            starts = self._starts(spark, number)
            size = self._size(spark, number, starts)
            self._apply(applier, self._columns.prepare(rows, number), batch, starts, size, table)
        tables = self._tables
        if self._growth is not None and not self._growth.is_done:
            by_bucket = files_of(tables.rows.open()).values()
            self._growth.note({file.path: file.size for files in by_bucket for file in files})
        self._upkeep.after(number, (tables.rows, tables.remembered, tables.streams, tables.quarantine))

    def _size(self, spark: SparkSession, number: int, starts: Starts) -> int | None:
        """The bytes of streams in a batch. None if offsets do not count bytes, or if a stream is not continued."""
        size = 0
        for path, end in ends_of(spark, self._checkpoint, number).items():
            life, position, start = incarnation(end.offset), byte_position(end.offset), starts.get(path)
            if life is None or position is None or is_in_snapshot(end.offset):
                return None
            if start is None:
                size += position
            elif start.incarnation == int(life):
                size += max(0, position - start.position)
            else:
                return None
        return size

    def _starts(self, spark: SparkSession, number: int) -> dict[str, BatchStart]:
        """Where the batch starts in each stream, as far as offsets count bytes. Events of a snapshot are ordered by the
        position after it, so a start inside one is none."""
        ends = ends_of(spark, self._checkpoint, number - 1) if number else {}
        starts = {}
        for path, end in ends.items():
            life, position = incarnation(end.offset), byte_position(end.offset)
            if life is not None and position is not None and not is_in_snapshot(end.offset):
                starts[path] = BatchStart(int(life), position)
        return starts

    def _apply(
        self,
        applier: Applier,
        events: DataFrame,
        batch: TableBatch,
        starts: Starts,
        size: int | None,
        table: DeltaTable,
    ) -> None:
        path = self._settings.path
        if path == "merge":
            applier.apply_in_driver(events.toArrow(), batch, starts)
            return
        few = self._few(events, size)
        rows = self._tables.rows
        if few is not None and path == "auto" and has_change_feed(rows) and not has_many_files(rows):
            applier.apply_in_driver(few, batch, starts)  # the feed then has the changes only, and no rewritten rows
            return

        def run(work: BucketWork) -> list[BucketResult]:
            if few is not None and work.size(set(few.column(BUCKET).to_pylist())) <= limits.PIPELINE_DRIVER_BYTES:
                return run_in_driver(few, work)
            return run_in_tasks(events, work)

        applier.apply_by_bucket(run, batch, starts, table)

    def _few(self, events: DataFrame, size: int | None) -> pa.Table | None:
        """The events of a small batch. `size`: how many bytes of streams it has, as far as that is known."""
        if size is not None and size > limits.PIPELINE_DRIVER_EVENT_BYTES:
            return None
        events_max = limits.PIPELINE_DRIVER_EVENTS
        some = events.limit(events_max + 1).toArrow()
        return some if some.num_rows <= events_max else None
