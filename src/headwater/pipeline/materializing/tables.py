"""The tables of a job: the rows, the events kept for late ones, the streams with their cuts, and the quarantine.

All but the rows are in tables beside it, so that readers do not see them. The commits of a batch have a fixed order:
quarantine, streams, kept events, rows. Each records the batch, and is not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import TableNotFoundError

from headwater import limits
from headwater.errors import SchemaError
from headwater.pipeline.belonging import TableGroup
from headwater.pipeline.checkpoints import beside
from headwater.pipeline.features import check_writable
from headwater.pipeline.lake import DataFile, Lake, TableBatch, TableFiles
from headwater.pipeline.materializing.layout import BUCKET, CURRENT, JOB, NUMBER, TIME, Layout, aligned
from headwater.pipeline.materializing.settings import MaterializeSettings

REMEMBERED, STREAMS, QUARANTINED = "tombstones", "streams", "quarantine"  # the tables beside the table

_SETTINGS = "headwater.materialize"
STREAMS_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("incarnation", pa.int64()),
        ("order", pa.int64()),
        ("at", TIME),
        ("is_cut", pa.bool_()),
        ("job", pa.string()),
        ("batch", pa.int64()),
    ]
)
_QUARANTINE = pa.schema(
    [
        ("stream", pa.string()),
        ("offset", pa.string()),
        ("order", pa.int64()),
        ("append_time", TIME),
        ("type", pa.string()),
        ("key", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("job", pa.string()),
        ("batch", pa.int64()),
    ]
)


class Tables(msgspec.Struct, frozen=True):
    """The locations of the tables."""

    rows: Lake
    remembered: Lake
    streams: Lake
    quarantine: Lake

    def locations(self) -> dict[str, str]:
        names = ("the table", "the table of kept events", "the table of streams", "the quarantine")
        lakes = (self.rows, self.remembered, self.streams, self.quarantine)
        return {name: lake.uri for name, lake in zip(names, lakes, strict=True)}


def tables_at(uri: str) -> Tables:
    uri = uri.rstrip("/")
    return Tables(Lake(uri), *(Lake(f"{uri}.{name}") for name in (REMEMBERED, STREAMS, QUARANTINED)))


def buckets_for(stream_bytes: int) -> int:
    """The number of buckets of a new table, by the size of its streams: a power of two within limits."""
    wanted = -(-stream_bytes // limits.PIPELINE_BUCKET_STREAM_BYTES)
    within = min(max(wanted, limits.PIPELINE_BUCKETS_MIN), limits.PIPELINE_BUCKETS_MAX)
    return 1 << (within - 1).bit_length()


def group_of(tables: Tables, layout: Layout, checkpoint: str | None = None) -> TableGroup:
    """The tables that a job with this layout has, and its checkpoint."""
    kept = {} if layout.sequence is None else {REMEMBERED: tables.remembered}
    others = {STREAMS: tables.streams, QUARANTINED: tables.quarantine, **kept}
    return TableGroup(tables.rows, others, beside(tables.rows.uri, "checkpoint", checkpoint))


def prepare(
    tables: Tables, settings: MaterializeSettings, layout: Layout, checkpoint: str | None = None
) -> MaterializeSettings:
    """Create the tables, or check existing ones and add missing columns. Returns the settings that apply."""
    group = group_of(tables, layout, checkpoint)
    if tables.rows.exists():
        settings = _checked(tables.rows.open(), settings)
    _check(tables, layout)
    group.check()
    if layout.sequence is not None:
        _fit(tables.remembered, layout.remembered, [BUCKET], {})
    tables.streams.create(STREAMS_SCHEMA)
    tables.quarantine.create(_QUARANTINE)
    lasting = {_SETTINGS: json.dumps(settings.lasting()), **group.properties()}
    partitions = [BUCKET, CURRENT] if layout.is_history else [BUCKET]
    _fit(tables.rows, layout.rows, partitions, lasting)  # last: an existing table has the others beside it
    return settings


def _check(tables: Tables, layout: Layout) -> None:
    """Refuse tables that cannot be used, before anything is written."""
    _missing(tables.rows, layout.rows)
    if layout.sequence is not None:
        _missing(tables.remembered, layout.remembered)
    tables.streams.check(STREAMS_SCHEMA, removes=False)
    tables.quarantine.check(_QUARANTINE, removes=False)


def _checked(table: DeltaTable, settings: MaterializeSettings) -> MaterializeSettings:
    text = table.metadata().configuration.get(_SETTINGS)
    if text is None:
        raise SchemaError(f"{table.table_uri} was not created by materialize; use another table")
    before, now = json.loads(text), settings.lasting()
    settings = msgspec.structs.replace(settings, buckets=before["buckets"])
    for name, value in before.items():
        if name != "buckets" and now.get(name) != value:
            message = f"{table.table_uri} was created with {name}={value!r}, not {now.get(name)!r}"
            raise SchemaError(f"{message}; materialize into another table")
    return settings


def _fit(lake: Lake, schema: pa.Schema, partitions: Sequence[str], configuration: dict[str, str]) -> None:
    table = lake.create(_with_bucket(schema), partitions, configuration)
    if added := _missing(lake, schema):
        with lake.syncing(table):
            table.alter.add_columns(added)


def _missing(lake: Lake, schema: pa.Schema) -> list[Field]:
    """The columns that a table does not have yet. Refuses one that cannot be written, or has other columns."""
    try:
        table = lake.open()
    except TableNotFoundError:
        return []
    check_writable(table, removes=True)
    there = {field.name: field for field in table.schema().fields}
    fields = Schema.from_arrow(_with_bucket(schema)).fields
    for field in fields:
        existing = there.get(field.name)
        if existing is not None and existing.type != field.type:
            message = f"{field.name} is {_name(existing.type)} in {lake.uri}, not {_name(field.type)}"
            raise SchemaError(f"{message}; keep its type, or materialize into another table")
    missing = sorted(there.keys() - {field.name for field in fields})
    if missing:
        raise SchemaError(f"{lake.uri} has columns that the schema lacks: {', '.join(missing)}; add them to the schema")
    return [field for field in fields if field.name not in there]


def _with_bucket(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, pa.field(BUCKET, pa.int32())])


def _name(kind: object) -> str:
    return str(getattr(kind, "type", kind))


def files_of(table: DeltaTable) -> dict[int, list[DataFile]]:
    """The files of a table by bucket."""
    by_bucket: dict[int, list[DataFile]] = {}
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return by_bucket
    is_current = f"partition.{CURRENT}"
    for row in actions.select([n for n in actions.column_names if n in _ACTION_COLUMNS or n == is_current]).to_pylist():
        partition = {BUCKET: str(row[f"partition.{BUCKET}"])}
        if is_current in row:
            partition[CURRENT] = "true" if row[is_current] else "false"
        file = DataFile(row["path"], row["size_bytes"], partition, "")
        by_bucket.setdefault(row[f"partition.{BUCKET}"], []).append(file)
    return by_bucket


def has_many_files(lake: Lake) -> bool:
    """Whether to rewrite buckets, which merges their files, because each MERGE adds files."""
    by_bucket = files_of(lake.open()).values()
    return sum(map(len, by_bucket)) > limits.PIPELINE_BUCKET_FILES_MAX * max(1, len(by_bucket))


def has_change_feed(lake: Lake) -> bool:
    """Whether the table tells readers its changes."""
    properties = lake.open().metadata().configuration
    return str(properties.get("delta.enableChangeDataFeed")).lower() == "true"


_ACTION_COLUMNS = ("path", "size_bytes", f"partition.{BUCKET}")


def read_files(lake: Lake, files: Sequence[DataFile], schema: pa.Schema, storage: TableFiles | None = None) -> pa.Table:
    """The rows of files, with the columns of a schema, including partition columns."""
    if not files:
        return schema.empty_table()
    storage = storage or lake.files()
    stored = pa.schema([field for field in schema if field.name not in (BUCKET, CURRENT)])
    parts = []
    for file in files:
        with storage.open_input_file(file.path) as source:
            part = pq.ParquetFile(source, pre_buffer=False).read(use_threads=False)
        parts.append(part if part.schema.equals(stored) else aligned(part, stored))
    rows, sizes = pa.concat_tables(parts), [part.num_rows for part in parts]
    if BUCKET in schema.names:
        buckets = np.repeat(np.array([int(file.partition[BUCKET]) for file in files], np.int32), sizes)
        rows = rows.append_column(BUCKET, pa.array(buckets))
    if CURRENT in schema.names:
        current = np.repeat(np.array([file.partition[CURRENT] == "true" for file in files]), sizes)
        rows = rows.append_column(CURRENT, pa.array(current))
    return aligned(rows, schema)


def quarantined(rows: pa.Table, batch: TableBatch) -> pa.Table:
    bad = rows.filter(pc.is_valid(rows.column("bad")))
    columns = {
        **{name: bad.column(name) for name in ("stream", "offset", "order", "type", "key", "message")},
        "append_time": bad.column("updated_at"),
        "reason": bad.column("bad"),
        "job": pa.repeat(pa.scalar(batch.job, pa.string()), bad.num_rows),
        "batch": pa.repeat(pa.scalar(batch.number, pa.int64()), bad.num_rows),
    }
    arrays = [columns[field.name].cast(field.type) for field in _QUARANTINE]
    return pa.Table.from_arrays(arrays, schema=_QUARANTINE)


def kept_before(remembered: pa.Table, batch: TableBatch) -> pa.Table:
    """Kept events without those of this batch, which an attempt that was killed has added."""
    if JOB not in remembered.column_names:
        return remembered
    same_job = pc.fill_null(pc.equal(remembered.column(JOB), batch.job), False)
    same_batch = pc.fill_null(pc.equal(remembered.column(NUMBER), batch.number), False)
    before = remembered.filter(pc.invert(pc.and_(same_job, same_batch)))
    return kept_by(before, TableBatch("", -1, made_of=0))  # a table of an earlier version does not have the batches


def kept_by(remembered: pa.Table, batch: TableBatch) -> pa.Table:
    """Kept events to store: those without a batch are of this one."""
    for name, value in ((JOB, batch.job), (NUMBER, batch.number)):
        if name in remembered.column_names:
            place = remembered.schema.get_field_index(name)
            column = pc.fill_null(remembered.column(name), value)
            remembered = remembered.set_column(place, remembered.schema.field(place), column)
    return remembered


def commit(
    lake: Lake,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    *,
    batch: TableBatch,
    table: DeltaTable | None = None,
    always: bool = False,
) -> None:
    """Commit files, unless the batch was committed before. Without files, the batch is committed if `always` is set."""
    if not added and not removed and not always:
        return
    table = table or lake.open()
    if not batch.is_done(table):
        lake.commit(table, added, batch=batch, removing=removed)
