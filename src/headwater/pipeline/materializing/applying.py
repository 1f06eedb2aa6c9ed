"""Applies a batch in the driver: finds resets and new incarnations of streams, runs the merge, and commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from headwater.errors import OptionError
from headwater.pipeline.lake import DataFile, TableBatch
from headwater.pipeline.materializing.buckets import BucketResult, BucketWork
from headwater.pipeline.materializing.cuts import (
    Cuts,
    NewIncarnation,
    Starts,
    StreamsTable,
    check_forward,
    continued,
    cuts_of,
    joined,
    new_lives,
    read_streams,
    resets,
    stream_rows,
)
from headwater.pipeline.materializing.in_driver import merge_in_driver
from headwater.pipeline.materializing.layout import Layout
from headwater.pipeline.materializing.tables import (
    QUARANTINED,
    REMEMBERED,
    STREAMS,
    Tables,
    commit,
    files_of,
    quarantined,
)

Run: TypeAlias = Callable[[BucketWork], list[BucketResult]]  # merges every bucket of a batch


class Applier:
    """Applies the batches of one job, one after the other, each with a MERGE or by bucket."""

    def __init__(self, tables: Tables, layout: Layout) -> None:
        self._tables = tables
        self._layout = layout
        self._streams: StreamsTable | None = None  # after the previous batch

    def check_owner(self, job: str) -> None:
        """Refuse a history that another job wrote, because its events would be in it twice."""
        if not self._layout.is_history or self._layout.sequence is not None:
            return
        table = self._tables.rows.open()
        if table.transaction_version(job) is None and table.file_uris():
            message = (
                f"the history in {table.table_uri} has another checkpoint; with this one, events would be in it twice"
            )
            raise OptionError(f"{message}; use that checkpoint, or delete the table and the tables beside it")

    def check(self, batch: TableBatch, table: DeltaTable) -> None:
        """Refuse a batch whose number was used for other rows. Within a run, numbers only increase."""
        batch.check(table)
        if self._streams is None:
            for lake in (self._tables.quarantine, self._tables.streams, self._tables.remembered):
                if lake.exists():
                    batch.check(lake.open())

    def apply_in_driver(self, events: pa.Table, batch: TableBatch, starts: Starts | None = None) -> None:
        """Merge the changes in the driver, with all events in memory. `starts`: where it starts in each stream."""
        streams = self._known(batch)
        check_forward(events, streams.lives, starts or {})
        lives = joined(new_lives(events, streams.lives))
        cuts = cuts_of(streams, lives, resets(events), continued(events, streams.lives), starts or {})
        bad = quarantined(events, batch)
        self._commit_quarantine([self._tables.quarantine.write(bad, {})] if bad.num_rows else [], batch)
        new_rows = self._commit_streams(lives, cuts, batch)
        batch = _changing(batch, quarantine=bool(bad.num_rows), streams=bool(new_rows.num_rows))
        batch = merge_in_driver(self._tables, self._layout, events, cuts, batch=batch)
        commit(self._tables.rows, [], [], batch=batch, always=True)
        streams.note(new_rows)

    def apply_by_bucket(
        self, run: Run, batch: TableBatch, starts: Starts | None = None, table: DeltaTable | None = None
    ) -> None:
        """Merge the buckets that the batch changes. Their new files replace those that were read."""
        streams = self._known(batch)
        table = self._tables.rows.open() if table is None else table
        remembered = self._tables.remembered.open() if self._layout.sequence is not None else None
        work = BucketWork(
            tables=self._tables,
            layout=self._layout,
            rows=files_of(table),
            remembered={} if remembered is None else files_of(remembered),
            lives=streams.lives,
            cuts=cuts_of(streams, [], []),
            batch=batch,
            starts=starts or {},
        )
        results = run(work)
        lives = joined(life for one in results for life in one.lives)
        further = {stream for one in results for stream in one.continued}
        cuts = cuts_of(streams, lives, [reset for one in results for reset in one.resets], further, starts or {})
        if cuts.new:
            results = run(msgspec.structs.replace(work, cuts=cuts))
        bad = [file for one in results for file in one.quarantine]
        self._commit_quarantine(bad, batch)
        new_rows = self._commit_streams(lives, cuts, batch)
        batch = _changing(batch, quarantine=bool(bad), streams=bool(new_rows.num_rows))
        self._commit_buckets(results, msgspec.structs.replace(work, batch=batch), table, remembered)
        streams.note(new_rows)

    def _known(self, batch: TableBatch) -> StreamsTable:
        if self._streams is None:
            self._streams = read_streams(self._tables, batch)
        return self._streams

    def _commit_quarantine(self, files: list[DataFile], batch: TableBatch) -> None:
        commit(self._tables.quarantine, files, [], batch=batch)

    def _commit_streams(self, lives: Sequence[NewIncarnation], cuts: Cuts, batch: TableBatch) -> pa.Table:
        rows = stream_rows(lives, cuts, batch)
        files = [self._tables.streams.write(rows, {})] if rows.num_rows else []
        commit(self._tables.streams, files, [], batch=batch)
        return rows

    def _commit_buckets(
        self, results: Sequence[BucketResult], work: BucketWork, table: DeltaTable, remembered: DeltaTable | None
    ) -> None:
        batch = work.batch
        if remembered is not None:
            removed = _named(work.remembered, {path for one in results for path in one.remembered_removed})
            added = [file for one in results for file in one.remembered]
            commit(self._tables.remembered, added, removed, batch=work.batch, table=remembered)
            batch = batch.also(REMEMBERED) if added or removed else batch
        removed = _named(work.rows, {path for one in results for path in one.rows_removed})
        added = [file for one in results for file in one.rows]
        commit(self._tables.rows, added, removed, batch=batch, table=table, always=True)


def _changing(batch: TableBatch, *, quarantine: bool, streams: bool) -> TableBatch:
    """The batch as it is committed to the table, with the tables beside it that it has changed."""
    batch = batch.also(QUARANTINED) if quarantine else batch
    return batch.also(STREAMS) if streams else batch


def _named(files: dict[int, list[DataFile]], paths: set[str]) -> list[DataFile]:
    return [file for some in files.values() for file in some if file.path in paths]
