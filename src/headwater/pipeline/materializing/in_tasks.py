"""The path `buckets`: each task reads buckets of the table, merges the events, and rewrites the buckets.

The batch is read once. Tasks start before it is known whether the batch has a cut, which is rare. If it has one, their
files are discarded, and the merge is repeated with the cut, also in buckets without events.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headwater.pipeline.lake import DataFile, Lake, TableBatch
from headwater.pipeline.materializing.cuts import (
    Cuts,
    NewIncarnation,
    Reset,
    Starts,
    check_forward,
    continued,
    new_lives,
    resets,
)
from headwater.pipeline.materializing.layout import BUCKET, CURRENT, Layout, aligned, changes
from headwater.pipeline.materializing.merging import Merged, merge
from headwater.pipeline.materializing.tables import Tables, kept_before, kept_by, quarantined, read_files
from headwater.spark.workers import keep_memory


class BucketResult(msgspec.Struct, kw_only=True):
    """The result of one bucket."""

    rows: list[DataFile] = []
    rows_removed: list[str] = []
    remembered: list[DataFile] = []
    remembered_removed: list[str] = []
    quarantine: list[DataFile] = []
    lives: list[NewIncarnation] = []
    continued: list[str] = []
    resets: list[Reset] = []


class BucketWork(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a task. Pickled."""

    tables: Tables
    layout: Layout
    rows: dict[int, list[DataFile]]
    remembered: dict[int, list[DataFile]]
    lives: Mapping[str, Mapping[int, int]]
    cuts: Cuts
    batch: TableBatch
    starts: Starts = {}

    def run(self, events: pa.Table) -> BucketResult:
        keep_memory()
        bucket = events.column(BUCKET)[0].as_py()
        events = events.filter(pc.is_valid(events.column("stream")))
        check_forward(events, self.lives, self.starts)
        further = continued(events, self.lives)
        result = BucketResult(lives=new_lives(events, self.lives), continued=further, resets=resets(events))
        bad = quarantined(events, self.batch)
        if bad.num_rows:
            result.quarantine = [self.tables.quarantine.write(bad, {})]
        changed = aligned(changes(events), self.layout.events)
        if changed.num_rows or self.cuts.new:
            self._merge(bucket, changed, result)
        return result

    def _merge(self, bucket: int, events: pa.Table, result: BucketResult) -> None:
        layout = self.layout
        files, kept = self.rows.get(bucket, []), self.remembered.get(bucket, [])
        if layout.is_history and layout.sequence is None:
            files = [file for file in files if file.partition[CURRENT] == "true"]
        rows = read_files(self.tables.rows, files, layout.rows)
        remembered = kept_before(read_files(self.tables.remembered, kept, layout.remembered), self.batch)
        merged = merge(layout, rows, remembered, events, self.cuts.table(layout), self.cuts.lives)
        if merged.rows_changed:
            result.rows, result.rows_removed = self._written(bucket, merged), [file.path for file in files]
        if merged.remembered_changed:
            result.remembered = _write(
                self.tables.remembered, kept_by(merged.remembered, self.batch), {BUCKET: str(bucket)}
            )
            result.remembered_removed = [file.path for file in kept]

    def _written(self, bucket: int, merged: Merged) -> list[DataFile]:
        rows, lake = merged.rows, self.tables.rows
        if not self.layout.is_history:
            return _write(lake, rows, {BUCKET: str(bucket)})
        is_current, rows = rows.column(CURRENT), rows.drop_columns(CURRENT)
        parts = {"true": rows.filter(is_current), "false": rows.filter(pc.invert(is_current))}
        return [
            file for name, part in parts.items() for file in _write(lake, part, {BUCKET: str(bucket), CURRENT: name})
        ]


def _write(lake: Lake, rows: pa.Table, partition: dict[str, str]) -> list[DataFile]:
    return [lake.write(rows, partition)] if rows.num_rows else []


def run_in_tasks(events: DataFrame, work: BucketWork) -> list[BucketResult]:
    """Merge in tasks, one bucket at a time."""
    if work.cuts.new:  # which can remove rows from any bucket
        every = [(bucket,) for bucket in sorted({*work.rows, *work.remembered})]
        if every:
            others = events.sparkSession.createDataFrame(every, f"{BUCKET} INT")
            events = events.unionByName(others, allowMissingColumns=True)

    def run(rows: pa.Table) -> pa.Table:
        return pa.table({"done": [msgspec.json.encode(work.run(rows))]})

    answers = events.groupBy(BUCKET).applyInArrow(run, "done BINARY").collect()
    return [msgspec.json.decode(bytes(row.done), type=BucketResult) for row in answers]
