"""The path `buckets`: reads the buckets of a table that a batch changes, merges its events, and rewrites them.

A small batch is merged by threads of the driver, some buckets at a time, a large one by tasks, one bucket at a time.

The batch is read once. Merging starts before it is known whether the batch has a cut, which is rare. If it has one,
the files are discarded, and the merge is repeated with the cut, also in buckets without events.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headwater import limits
from headwater.pipeline.lake import DataFile, Lake, TableBatch, TableFiles, stats_of
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
from headwater.pipeline.materializing.merging import merge
from headwater.pipeline.materializing.tables import Tables, kept_before, kept_by, quarantined, read_files
from headwater.spark.workers import keep_memory


class BucketResult(msgspec.Struct, kw_only=True):
    """The result of some buckets."""

    rows: list[DataFile] = []
    rows_removed: list[str] = []
    remembered: list[DataFile] = []
    remembered_removed: list[str] = []
    quarantine: list[DataFile] = []
    lives: list[NewIncarnation] = []
    continued: list[str] = []
    resets: list[Reset] = []


class BucketWork(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to merge events into buckets. Pickled for tasks."""

    tables: Tables
    layout: Layout
    rows: dict[int, list[DataFile]]
    remembered: dict[int, list[DataFile]]
    lives: Mapping[str, Mapping[int, int]]
    cuts: Cuts
    batch: TableBatch
    starts: Starts = {}

    def size(self, buckets: Iterable[int]) -> int:
        """The bytes of the files of buckets."""
        files = (file for of_table in (self.rows, self.remembered) for one in buckets for file in of_table.get(one, ()))
        return sum(file.size for file in files)

    def sync(self, results: Sequence[BucketResult]) -> None:
        """Sync the files of results, which must be done before they are committed."""
        self.tables.rows.sync(file for one in results for file in one.rows)
        self.tables.remembered.sync(file for one in results for file in one.remembered)

    def run(self, buckets: Collection[int], events: pa.Table) -> BucketResult:
        """Merge the events of buckets. If there are cuts, rows of buckets without events change too.

        The files of rows and kept events are not synced.
        """
        check_forward(events, self.lives, self.starts)
        further = continued(events, self.lives)
        result = BucketResult(lives=new_lives(events, self.lives), continued=further, resets=resets(events))
        bad = quarantined(events, self.batch)
        if bad.num_rows:
            result.quarantine = [self.tables.quarantine.write(bad, {})]
        layout = msgspec.structs.replace(self.layout, payload=self.layout.payload.append(pa.field(BUCKET, pa.int32())))
        changed = aligned(changes(events), layout.events)
        if not self.cuts.new:
            buckets = pc.unique(changed.column(BUCKET)).to_pylist()
        if buckets:
            self._merge(layout, sorted(buckets), changed, result)
        return result

    def _merge(self, layout: Layout, buckets: Sequence[int], events: pa.Table, result: BucketResult) -> None:
        """Only rows of the entities that the events change are merged; the others are copied."""
        files = [file for bucket in buckets for file in self.rows.get(bucket, ())]
        if layout.is_history and layout.sequence is None:
            files = [file for file in files if file.partition[CURRENT] == "true"]
        files_kept = [file for bucket in buckets for file in self.remembered.get(bucket, ())]
        scope = _Scope(layout, events, self.cuts)
        tables = self.tables
        of_rows = tables.rows.files()
        of_kept = None if layout.sequence is None else tables.remembered.files()
        rows, others = scope.split(read_files(tables.rows, files, layout.rows, of_rows))
        kept = kept_before(read_files(tables.remembered, files_kept, layout.remembered, of_kept), self.batch)
        remembered, others_kept = scope.split(kept)
        merged = merge(layout, rows, remembered, events, self.cuts.table(layout), self.cuts.lives)
        if merged.rows_changed:
            result.rows = list(_written(tables.rows, pa.concat_tables([others, merged.rows]), of_rows))
            result.rows_removed = [file.path for file in files]
        if merged.remembered_changed:
            kept = kept_by(pa.concat_tables([others_kept, merged.remembered]), self.batch)
            result.remembered = list(_written(tables.remembered, kept, of_kept))
            result.remembered_removed = [file.path for file in files_kept]


class _Scope:
    """The rows that a batch can change."""

    def __init__(self, layout: Layout, events: pa.Table, cuts: Cuts) -> None:
        self._key = layout.keys[0]
        self._values = pc.unique(events.column(self._key))
        self._cut = pa.array(sorted({cut.stream for cut in cuts.new}), pa.string())

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """These rows, and the others."""
        is_in = pc.is_in(rows.column(self._key), value_set=self._values)
        if len(self._cut):
            is_in = pc.or_(is_in, pc.is_in(rows.column("stream"), value_set=self._cut))
        return rows.filter(is_in), rows.filter(pc.invert(is_in))


def _written(lake: Lake, rows: pa.Table, files: TableFiles | None) -> Iterator[DataFile]:
    """Write a file for each partition that has rows."""
    names = [name for name in (BUCKET, CURRENT) if name in rows.column_names]
    buckets = rows.column(BUCKET).to_numpy().astype(np.int64)
    numbers = buckets * 2
    if CURRENT in names:
        numbers += rows.column(CURRENT).to_numpy().astype(np.int64)
    if len(numbers) and (numbers != numbers[0]).any():
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows.combine_chunks().take(pa.array(order))
    edges = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
    values = rows.drop_columns(names)
    stats = stats_of(values, edges[:-1].tolist()) if len(numbers) else []
    for first, after, of_file in zip(edges[:-1].tolist(), edges[1:].tolist(), stats, strict=True):
        partition = {BUCKET: str(numbers[first] // 2)}
        if CURRENT in names:
            partition[CURRENT] = "true" if numbers[first] % 2 else "false"
        yield lake.write_unsynced(values.slice(first, after - first), partition, files or lake.files(), of_file)


def run_in_tasks(events: DataFrame, work: BucketWork) -> list[BucketResult]:
    """Merge in tasks, one bucket at a time."""
    if work.cuts.new:  # which can remove rows from any bucket
        every = [(bucket,) for bucket in sorted({*work.rows, *work.remembered})]
        if every:
            others = events.sparkSession.createDataFrame(every, f"{BUCKET} INT")
            events = events.unionByName(others, allowMissingColumns=True)

    def run(rows: pa.Table) -> pa.Table:
        keep_memory()
        bucket, rows = rows.column(BUCKET)[0].as_py(), rows.filter(pc.is_valid(rows.column("stream")))
        result = work.run([bucket], rows)
        work.sync([result])
        return pa.table({"done": [msgspec.json.encode(result)]})

    answers = events.groupBy(BUCKET).applyInArrow(run, "done BINARY").collect()
    return [msgspec.json.decode(bytes(row.done), type=BucketResult) for row in answers]


def run_in_driver(events: pa.Table, work: BucketWork) -> list[BucketResult]:
    """Merge in threads of the driver, which hold the rows of some buckets in memory."""
    buckets = set(pc.unique(events.column(BUCKET)).to_pylist())
    if work.cuts.new:
        buckets |= {*work.rows, *work.remembered}

    def run(buckets: list[int]) -> BucketResult:
        of_them = pc.is_in(events.column(BUCKET), value_set=pa.array(buckets, pa.int32()))
        return work.run(buckets, events.filter(of_them))

    with ThreadPoolExecutor(min(os.cpu_count() or 1, limits.PIPELINE_DRIVER_THREADS)) as threads:
        results = list(threads.map(run, _groups(sorted(buckets), work)))
    work.sync(results)  # together, because all of them are on their way to the disk
    return results


def _groups(buckets: Sequence[int], work: BucketWork) -> Iterator[list[int]]:
    """Buckets that are merged together."""
    group: list[int] = []
    size = 0
    for bucket in buckets:
        of_bucket = work.size([bucket])
        if group and size + of_bucket > limits.PIPELINE_DRIVER_STEP_BYTES:
            yield group
            group, size = [], 0
        group.append(bucket)
        size += of_bucket
    if group:
        yield group
