"""The job `materialize`: keeps a Delta table of the current state of state streams, or of its history."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headwater import limits
from headwater.pipeline.checkpoints import beside, check_file_system, ends_of, has_begun, range_of
from headwater.pipeline.connecting import Connecting
from headwater.pipeline.growth import GrowthWatch
from headwater.pipeline.lake import TableBatch, telling_conflicts
from headwater.pipeline.locations import absolute, check_apart, check_surroundings
from headwater.pipeline.materialize.applying import Applier
from headwater.pipeline.materialize.buckets import run_buckets
from headwater.pipeline.materialize.events import EventColumns
from headwater.pipeline.materialize.layout import Layout
from headwater.pipeline.materialize.settings import MaterializeSettings, checked
from headwater.pipeline.materialize.tables import (
    Tables,
    buckets_for,
    files_of,
    group_of,
    has_many_files,
    prepare,
    tables_at,
)
from headwater.pipeline.running import StreamingJob, start_query
from headwater.pipeline.sources import JobSource
from headwater.pipeline.upkeep import TableUpkeep
from headwater.spark.positions import byte_position

log = logging.getLogger(__name__)


def materialize(
    spark: SparkSession,
    *,
    url: str,
    streams: str,
    table: str,
    type: str | None = None,  # noqa: A002
    schema: str | None = None,
    keys: Sequence[str] | str | None = None,
    sequence_by: str | None = None,
    apply_as_deletes: str | None = None,
    stored_as_scd_type: int | str = 1,
    track_history_column_list: Sequence[str] | str | None = None,
    path: str = "auto",
    buckets: int | None = None,
    checkpoint: str | None = None,
    once: bool = False,
    every_s: float = limits.PIPELINE_MATERIALIZE_EVERY_S,
    token: str | None = None,
    starting_offsets: str | None = None,
    starting_timestamp: datetime | str | None = None,
    max_records: int | None = None,
    max_bytes: int | None = limits.PIPELINE_BATCH_BYTES,
    fail_on_data_loss: bool = True,
    compact_every: int = limits.PIPELINE_COMPACT_EVERY,
    retain_hours: int | None = limits.PIPELINE_RETAIN_H,
    name: str = "materialize",
    **connecting: Unpack[Connecting],
) -> StreamingJob:
    """Keep a Delta table of the entities of state streams. It is created if it does not exist.

    The table has the current state (`stored_as_scd_type=1`) or the history (2). Events that cannot be applied go to the
    table `{table}.quarantine`, with the reason. With `sequence_by`, an expression over the columns, the event with the
    greatest sequence wins instead of the last event.

    Each batch rewrites the buckets of the table that have events, up to all of them, so there is at most one batch in
    `every_s`. `buckets` is the number of buckets of a new table, by default chosen by the size of the streams.

    After every `compact_every` batches small files are merged, and files and log entries that no version younger than
    `retain_hours` needs are deleted (None: never). With `compact_every=0` neither is done.
    """
    upkeep = TableUpkeep(compact_every, retain_hours)
    settings = checked(
        type=type,
        schema=schema,
        keys=keys,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        stored_as_scd_type=stored_as_scd_type,
        track_history_column_list=track_history_column_list,
        buckets=limits.PIPELINE_BUCKETS_MIN if buckets is None else buckets,
        path=path,
    )
    table = absolute(table)
    source = JobSource(
        url=url,
        streams=streams,
        token=token,
        connecting=connecting,
        starting_offsets=starting_offsets,
        starting_timestamp=starting_timestamp,
        max_records=max_records,
        max_bytes=max_bytes,
        fail_on_data_loss=fail_on_data_loss,
    )
    place = beside(table, "checkpoint", checkpoint)
    tables = tables_at(table)
    check_apart({"the checkpoint": place, **tables.locations()})
    check_surroundings(table)
    source.check()
    check_file_system(spark, place)
    if not has_begun(place):
        source.check_streams()
    columns = EventColumns(settings)
    rows = source.rows(
        spark, "stream-state", is_first=not has_begun(place), schema=columns.source_schema, **columns.source_options
    )
    layout = columns.layout(rows)
    if buckets is None and not tables.rows.exists():
        settings = msgspec.structs.replace(settings, buckets=buckets_for(source.size()))
    settings = prepare(tables, settings, layout, place)
    if buckets not in (None, settings.buckets):
        log.warning("%s has %d buckets; buckets=%d is for new tables", table, settings.buckets, buckets)
    growth = None
    if not once:
        growth = GrowthWatch(table, buckets=settings.buckets, every_s=every_s, retain_hours=retain_hours)
    work = _Materializing(tables, settings, layout, place, upkeep, growth)
    return start_query(rows, work.work, name=name, checkpoint=place, once=once, every_s=None if once else every_s)


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
        applier.check(batch)
        if applier.is_done(batch):  # by the previous run, which was killed before Spark recorded it
            return
        self._applier = applier
        with telling_conflicts(self._tables.rows, batch):
            self._apply(applier, self._columns.prepare(rows, number), batch, self._starts(spark, number))
        tables = self._tables
        if self._growth is not None and not self._growth.is_done:
            found = files_of(tables.rows.open()).values()
            self._growth.note({file.path: file.size for files in found for file in files})
        self._upkeep.after(number, (tables.rows, tables.remembered, tables.streams, tables.quarantine))

    def _starts(self, spark: SparkSession, number: int) -> dict[str, int]:
        """The position at which the batch starts in each stream, as far as offsets count bytes."""
        ends = ends_of(spark, self._checkpoint, number - 1) if number else {}
        return {path: start for path, end in ends.items() if (start := byte_position(end.offset)) is not None}

    def _apply(self, applier: Applier, events: DataFrame, batch: TableBatch, starts: dict[str, int]) -> None:
        path = self._settings.path
        if path == "merge":
            applier.apply_here(events.toArrow(), batch, starts)
            return
        if path == "auto" and not has_many_files(self._tables.rows):
            some = events.limit(limits.PIPELINE_MERGE_EVENTS + 1).toArrow()
            if some.num_rows <= limits.PIPELINE_MERGE_EVENTS:
                applier.apply_here(some, batch, starts)
                return
        applier.apply_buckets(lambda work: run_buckets(events, work), batch, starts)
