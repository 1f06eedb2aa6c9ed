"""The path `merge`, for small batches: the driver merges, and one MERGE of delta-rs applies the changes."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from headwater.pipeline.features import check_writable
from headwater.pipeline.lake import DataFile, Lake, TableBatch, noted
from headwater.pipeline.materializing.cuts import Cuts
from headwater.pipeline.materializing.layout import BUCKET, CURRENT, Layout, aligned, changes
from headwater.pipeline.materializing.merging import merge
from headwater.pipeline.materializing.tables import REMEMBERED, Tables, files_of, kept_before, kept_by, read_files

_GONE = "_gone"


def merge_in_driver(tables: Tables, layout: Layout, events: pa.Table, cuts: Cuts, *, batch: TableBatch) -> TableBatch:
    """Apply the events of a batch, all of them in memory. If they change no row, nothing is committed to the table.

    Returns the batch, with the tables beside the table that it has changed.
    """
    layout = msgspec.structs.replace(layout, payload=layout.payload.append(pa.field(BUCKET, pa.int32())))
    events = aligned(changes(events), layout.events)
    table = tables.rows.open()
    if batch.is_done(table) or not (events.num_rows or cuts.new):
        return batch
    scope = _Scope(layout, events, cuts)
    is_partial = not layout.is_history and layout.sequence is None and not cuts.new
    rows = layout.rows.empty_table() if is_partial else scope.read(tables.rows, table, layout.rows)
    remembered = layout.remembered.empty_table()
    if layout.sequence is not None:
        remembered_table = tables.remembered.open()
        remembered = kept_before(scope.read(tables.remembered, remembered_table, layout.remembered), batch)
    merged = merge(layout, rows, remembered, events, cuts.table(layout), cuts.lives)
    if merged.remembered_changed:
        key = (*layout.identity, *(("incarnation", "order") if layout.is_history else ()))
        gone = _absent(remembered, merged.remembered, key)
        with tables.remembered.syncing(remembered_table):
            _merge_into(remembered_table, kept_by(merged.remembered, batch), gone, key, batch=batch)
        batch = batch.also(REMEMBERED)
    if merged.rows_changed or is_partial:
        before = rows
        if is_partial:  # rows of deleted entities are removed, if they exist
            before = events.select([*layout.identity, BUCKET])
        gone = _absent(before, merged.rows, layout.row_key)
        with tables.rows.syncing(table):
            _merge_into(table, merged.rows, gone, layout.row_key, batch=batch)
    return batch


class _Scope:
    """The rows of a table that a batch can change."""

    def __init__(self, layout: Layout, events: pa.Table, cuts: Cuts) -> None:
        self._keys = layout.keys[0]
        self._values = events.column(self._keys).combine_chunks()
        self._buckets = set(events.column(BUCKET).to_pylist())
        self._cut = pa.array(sorted({cut.stream for cut in cuts.new}), pa.string())
        self._current_only = layout.is_history and layout.sequence is None

    def read(self, lake: Lake, table: DeltaTable, schema: pa.Schema) -> pa.Table:
        rows = read_files(lake, self._files(table), schema)
        wanted = pc.is_in(rows.column(self._keys), value_set=self._values)
        if len(self._cut):
            wanted = pc.or_(wanted, pc.is_in(rows.column("stream"), value_set=self._cut))
        return rows.filter(wanted)

    def _files(self, table: DeltaTable) -> list[DataFile]:
        by_bucket = files_of(table)
        buckets = by_bucket if len(self._cut) else self._buckets & by_bucket.keys()
        files = [file for bucket in sorted(buckets) for file in by_bucket[bucket]]
        return [file for file in files if not self._current_only or file.partition.get(CURRENT) != "false"]


def _absent(before: pa.Table, after: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The keys of rows that are no longer there, with their buckets."""
    names = [*key, BUCKET]
    keys = before.select(names).group_by(names).aggregate([])
    return keys.join(after.select(list(key)), keys=list(key), join_type="left anti")


def _merge_into(table: DeltaTable, rows: pa.Table, gone: pa.Table, key: tuple[str, ...], *, batch: TableBatch) -> None:
    if batch.is_done(table) or not (rows.num_rows or gone.num_rows):
        return
    check_writable(table, removes=True)
    schema = rows.schema
    source = pa.concat_tables([_marked(rows, gone=False), _marked(aligned(gone, schema), gone=True)])
    buckets = ", ".join(map(str, sorted(set(source.column(BUCKET).to_pylist()))))
    same = [f"t.`{name}` = s.`{name}`" for name in (BUCKET, *key)]
    (
        table.merge(
            source,
            " AND ".join([f"t.`{BUCKET}` IN ({buckets})", *same]),
            source_alias="s",
            target_alias="t",
            commit_properties=noted(batch),
        )
        .when_matched_delete(f"s.`{_GONE}`")
        .when_matched_update_all(f"NOT s.`{_GONE}`", except_cols=[_GONE])
        .when_not_matched_insert_all(f"NOT s.`{_GONE}`", except_cols=[_GONE])
        .execute()
    )


def _marked(rows: pa.Table, *, gone: bool) -> pa.Table:
    return rows.append_column(_GONE, pa.repeat(pa.scalar(gone), rows.num_rows))
