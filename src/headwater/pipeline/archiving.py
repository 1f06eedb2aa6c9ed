"""Archives streams in a Delta table of raw records, each once. `replay` writes them back.

A batch is one commit: tasks write files, and the driver commits them with the number of the batch. The job has a source
of its own: a task that reads a range writes its rows to files at once, and Spark only sees the names of these. A second
table has the metadata of the streams: their content types, and which are closed. A stream is marked closed after the
commit of its last rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headwater import limits
from headwater.client import StreamInfo
from headwater.pipeline.belonging import TableGroup
from headwater.pipeline.checkpoints import beside, check_file_system, ends_of, has_begun, position_of, range_of
from headwater.pipeline.continuity import CONTINUES_AT
from headwater.pipeline.lake import DataFile, Lake, TableBatch, telling_conflicts
from headwater.pipeline.locations import absolute, check_apart, check_surroundings, local_path
from headwater.pipeline.options import ArchiveOptions
from headwater.pipeline.records import APPEND_END, RecordCutter
from headwater.pipeline.running import StreamingJob, start_query
from headwater.pipeline.sources import JobSource
from headwater.pipeline.upkeep import TableUpkeep
from headwater.positions import BEGINNING, byte_position, incarnation, is_original
from headwater.spark.connection import ConnectionOptions
from headwater.spark.formats import DurableStreamsFormat
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import from_json
from headwater.spark.positions import StreamPlace, StreamRange
from headwater.spark.querying import TaskInput
from headwater.spark.sources import StreamReader

log = logging.getLogger(__name__)

COLUMNS = ("stream", "offset", "position", "order", "timestamp", "content_type", "value")
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("offset", pa.string()),
        ("position", pa.int64()),
        ("order", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("content_type", pa.string()),
        ("value", pa.binary()),
        (APPEND_END, pa.int64()),  # in a stream of bytes: the end of the append that the row belongs to
        (CONTINUES_AT, pa.string()),  # of servers whose offsets do not count bytes: see `continuity`
        ("date", pa.date32()),
    ]
)
_ROWS = from_arrow_schema(pa.schema([SCHEMA.field(name) for name in COLUMNS]))
STREAMS_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("incarnation", pa.string()),
        ("content_type", pa.string()),
        ("tail_offset", pa.string()),
        ("closed", pa.bool_()),
        ("first_offset", pa.string()),  # where the stream starts; a fork starts in its source. Null if not known
        ("missing", pa.string()),  # JSON: the ranges that were gone before they were archived. Null if there are none
    ]
)


def start(spark: SparkSession, options: ArchiveOptions) -> StreamingJob:
    """Start the job."""
    table = absolute(options.table)
    source = JobSource(options)
    place = beside(table, "checkpoint", options.checkpoint)
    check_apart({"the table": table, "the table of streams": streams_table(table), "the checkpoint": place})
    check_surroundings(table)
    source.check()
    check_file_system(spark, place)
    if not has_begun(place):
        source.check_streams()
    spark.dataSource.register(ArchiveFormat)
    rows = source.rows(spark, ArchiveFormat.name(), is_first=not has_begun(place), archive=table)  # asks for the schema
    upkeep = TableUpkeep(options.compact_every, options.retain_hours)
    archiving = _Archiving(Lake(table), source, place, upkeep)
    archiving.open()
    return start_query(
        rows, archiving.work, name=options.label, checkpoint=place, once=options.once, every_s=options.every_s
    )


def streams_table(table: str) -> str:
    return f"{table.rstrip('/')}.streams"


class _Archiving:
    """Commits each batch, in the driver."""

    def __init__(self, lake: Lake, source: JobSource, checkpoint: str, upkeep: TableUpkeep) -> None:
        beside = Lake(streams_table(lake.uri))
        self._lake = lake
        self._source = source
        self._checkpoint = checkpoint
        self._upkeep = upkeep
        self._streams = _Streams(beside, source)
        self._group = TableGroup(lake, {"streams": beside}, checkpoint)

    def open(self) -> None:
        """Check that the tables can be used and belong to the checkpoint and the server, and create them."""
        self._lake.check(SCHEMA, ["date"], removes=False)
        self._streams.check()
        self._group.check()
        directory = local_path(self._checkpoint)
        position = None if directory is None else position_of(directory)
        tails = self._source.tails_after({} if position is None else position.ends)
        self._streams.create()
        _create(self._lake, SCHEMA, ["date"], **self._group.properties())
        self._streams.note(tails, {})

    def work(self, rows: DataFrame, number: int, job: str) -> int:
        """Returns how many rows were archived."""
        row_count = 0
        table = self._group.open()
        spark, ends = rows.sparkSession, ends_of(rows.sparkSession, self._checkpoint, number)
        batch = TableBatch(job, number, range_of(spark, self._checkpoint, number))
        batch.check(table)
        if not batch.is_done(table):
            before = range_of(spark, self._checkpoint, number - 1) if number else None
            self._group.check_before(table, batch, before)
            self._streams.note_new(ends)
            written = rows.collect()
            row_count = sum(row.row_count for row in written)
            files = [msgspec.json.decode(row.file, type=DataFile) for row in written if row.file is not None]
            firsts = [msgspec.json.decode(row.firsts, type=dict[str, str]) for row in written if row.firsts is not None]
            starts = ends_of(spark, self._checkpoint, number - 1) if number else {}
            if gaps := gaps_of(starts, firsts):
                self._streams.note_missing(gaps)
            with telling_conflicts(self._lake, batch):
                self._lake.commit(table, files, batch=batch)  # also without rows: the table has every batch
        self._streams.note(self._source.tails_after(ends), ends)
        self._upkeep.after(number, [self._lake])
        return row_count


class Gap(msgspec.Struct, frozen=True):
    """A range of a stream that was gone before it was archived."""

    begin: str  # an offset
    end: str


def gaps_of(starts: Mapping[str, StreamPlace], firsts: Iterable[Mapping[str, str]]) -> dict[str, Gap]:
    """What a batch could not read: from where it starts in each stream to the first offset in the rows of its tasks."""
    reached: dict[str, str] = {}
    for of_task in firsts:
        for path, first in of_task.items():
            reached[path] = min(first, reached.get(path, first))
    gaps = {}
    for path, first in reached.items():
        begin = starts[path].offset if path in starts else BEGINNING
        if begin == BEGINNING:
            is_gap = not is_original(first) and byte_position(first) is not None
        else:
            is_gap = begin < first and incarnation(begin) == incarnation(first)
        if is_gap:
            gaps[path] = Gap(begin, first)
    return gaps


def _create(lake: Lake, schema: pa.Schema, partition_by: Sequence[str] = (), **properties: str) -> None:
    """Create a table, or add the columns that one of an earlier version lacks."""
    table = lake.create(schema, partition_by, properties)
    there = {field.name for field in table.schema().fields}
    if added := [field for field in Schema.from_arrow(schema).fields if field.name not in there]:
        with lake.syncing(table):
            table.alter.add_columns(added)


_FILES = "file STRING, firsts STRING, row_count BIGINT"  # what tasks tell the driver


class ArchiveFormat(DurableStreamsFormat):
    """The source of the job: its rows are the files that its tasks have written."""

    @classmethod
    def name(cls) -> str:
        return "durable-streams-archive"

    def schema(self) -> str:
        return _FILES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        texts = {name: text for name, text in self.options.items() if name.lower() != "archive"}
        return ArchiveReader(read_options(texts, bounded=False, state=False), Lake(self.options["archive"]))


class ArchiveInput(TaskInput):
    """The input of a task. `ends`: the ends of the batch, if the offsets of the server do not count bytes."""

    def __init__(self, ranges: Sequence[StreamRange], ends: Mapping[str, StreamPlace] | None) -> None:
        super().__init__(ranges)
        self.ends = ends


class ArchiveReader(StreamReader):
    """Reads batches of streams, and writes the rows of each task to files of the table."""

    def __init__(self, options: ReadOptions, lake: Lake) -> None:
        super().__init__(options, _ROWS)
        self._lake = lake

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        inputs = [one for one in super().partitions(start, end) if isinstance(one, TaskInput)]
        ends = None if all(part.exact for one in inputs for part in one.ranges) else from_json(end)
        return [ArchiveInput(one.ranges, ends) for one in inputs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ArchiveInput):  # otherwise Spark's own, if there is nothing to read
            yield from FileWriter(self._lake, self._options, partition.ends)(super().read(partition))


class FileWriter:
    """Writes the rows of a task to files of the table."""

    def __init__(self, lake: Lake, connection: ConnectionOptions, ends: Mapping[str, StreamPlace] | None) -> None:
        self._lake = lake
        self._files = lake.files()
        self._connection = connection
        self._ends = ends  # of the batch, if the offsets of the server do not count bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        today = datetime.now(UTC).date()  # for servers without record times
        held: dict[str, list[pa.Table]] = {}
        firsts: dict[str, str] = {}
        size = 0
        with self._connection.open() as client:
            cutter = RecordCutter(client)
            for rows in linked((cutter.cut(pa.Table.from_batches([batch])) for batch in batches), self._ends):
                for stream, first in _firsts(rows):
                    firsts[stream] = min(first, firsts.get(stream, first))
                dates = pc.fill_null(pc.cast(rows["timestamp"], pa.date32()), pa.scalar(today, pa.date32()))
                of_all = pc.unique(dates)
                for date in of_all:
                    of_date = rows if len(of_all) == 1 else rows.filter(pc.equal(dates, date))
                    held.setdefault(str(date), []).append(of_date)
                size += rows.nbytes
                if size > limits.PIPELINE_FILE_BYTES:
                    yield self._write(held)
                    size = 0
        if held:
            yield self._write(held)
        if firsts:
            yield _written([(None, msgspec.json.encode(firsts).decode(), 0)])

    def _write(self, held: dict[str, list[pa.Table]]) -> pa.RecordBatch:
        columns = [field for field in SCHEMA if field.name != "date"]
        files: list[tuple[str | None, str | None, int]] = []
        for date in list(held):
            rows = pa.concat_tables(held.pop(date)).select([field.name for field in columns]).cast(pa.schema(columns))
            file = self._lake.write(rows, {"date": date}, self._files)
            files.append((msgspec.json.encode(file).decode(), None, rows.num_rows))
        return _written(files)


def _written(rows: Sequence[tuple[str | None, str | None, int]]) -> pa.RecordBatch:
    files, firsts, row_counts = zip(*rows, strict=True)
    columns = [pa.array(files, pa.string()), pa.array(firsts, pa.string()), pa.array(row_counts, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["file", "firsts", "row_count"])


def _firsts(rows: pa.Table) -> Iterator[tuple[str, str]]:
    """The first offset of each stream in rows."""
    columns = rows.group_by("stream").aggregate([("offset", "min")])
    yield from zip(columns["stream"].to_pylist(), columns["offset_min"].to_pylist(), strict=True)


def linked(tables: Iterable[pa.Table], ends: Mapping[str, StreamPlace] | None) -> Iterator[pa.Table]:
    """Rows with the column `continues_at`: in the last row of each stream, where the batch ends in it.

    A task reads all rows of a stream, one stream after the other, from a server whose offsets do not count bytes.
    """
    if ends is None:
        for rows in tables:
            yield rows.append_column(CONTINUES_AT, pa.nulls(rows.num_rows, pa.string()))
        return
    held: pa.Table | None = None  # the last row so far, which may be the last one of its stream
    for rows in tables:
        rows = rows if held is None else pa.concat_tables([held, rows])
        streams = rows["stream"].to_pylist()
        yield _with_ends(rows.slice(0, len(streams) - 1), streams, ends)
        held = rows.slice(len(streams) - 1)
    if held is not None:
        yield _with_ends(held, [*held["stream"].to_pylist(), None], ends)


def _with_ends(rows: pa.Table, streams: Sequence[str | None], ends: Mapping[str, StreamPlace]) -> pa.Table:
    """`streams` has the stream of the row after the last one too."""
    marks = [str(ends.get(one or "", "")) if one != following else "" for one, following in pairwise(streams)]
    return rows.append_column(CONTINUES_AT, pa.array(marks, pa.string()))


class _Streams:
    """The table of streams: their metadata, and whether a closed stream is archived completely."""

    def __init__(self, lake: Lake, source: JobSource) -> None:
        self._lake = lake
        self._source = source
        self._known: dict[tuple[str, str], bool] | None = None

    def check(self) -> None:
        self._lake.check(STREAMS_SCHEMA, removes=True)

    def create(self) -> None:
        _create(self._lake, STREAMS_SCHEMA)

    def note_new(self, streams: Collection[str]) -> None:
        """Add streams that are not in the table, before their first rows are archived."""
        if not {path for path, _ in self._seen()}.issuperset(streams):
            self.note(self._source.tails(), {})

    def _seen(self) -> dict[tuple[str, str], bool]:
        if self._known is None:
            rows = self._lake.open().to_pyarrow_table().to_pylist()
            self._known = {(row["stream"], row["incarnation"]): row["closed"] for row in rows}
        return self._known

    def note(self, streams: Mapping[str, StreamInfo], ends: Mapping[str, StreamPlace]) -> None:
        """Add new streams, and streams that are closed and archived completely."""
        known = self._seen()
        before = {path for path, _ in known}
        new: list[dict[str, object]] = []
        for path, info in streams.items():
            key, closed = (path, incarnation(info.tail_offset) or ""), _is_all(info, ends.get(path))
            if key not in known or (closed and not known[key]):
                first = self._source.beginning(info)
                if first is None and path in before and key not in known:
                    first = self._source.first_offset(path)  # created again, or a fork that has its own data now
                known[key] = closed
                row = (*key, info.content_type, info.tail_offset, closed, first, None)
                new.append(dict(zip(STREAMS_SCHEMA.names, row, strict=True)))
        if new:
            self._merge(pa.Table.from_pylist(new, STREAMS_SCHEMA))

    def note_missing(self, gaps: Mapping[str, Gap]) -> None:
        """Add ranges that were gone before a batch could read them, before the rows of the batch are archived."""
        rows = {(row["stream"], row["incarnation"]): row for row in self._lake.open().to_pyarrow_table().to_pylist()}
        changed = []
        for path, gap in sorted(gaps.items()):
            row = rows.get((path, incarnation(gap.end) or ""))
            if row is None or (gap.begin == BEGINNING and row["first_offset"] != gap.end):
                continue  # the job was started with a later offset
            known = msgspec.json.decode(row["missing"] or "[]", type=list[Gap])
            if gap not in known:
                log.warning("%s: the data from %s to %s is gone and is not archived", path, gap.begin, gap.end)
                changed.append({**row, "closed": False, "missing": msgspec.json.encode([*known, gap]).decode()})
        if changed:
            self._merge(pa.Table.from_pylist(changed, STREAMS_SCHEMA))

    def _merge(self, rows: pa.Table) -> None:
        table = self._lake.open()
        merger = (
            table.merge(
                rows,
                "old.stream = new.stream AND old.incarnation = new.incarnation",
                source_alias="new",
                target_alias="old",
            )
            .when_matched_update({"closed": "new.closed", "tail_offset": "new.tail_offset"}, "new.closed")
            .when_matched_update({"missing": "new.missing"}, "new.missing IS NOT NULL")
            .when_not_matched_insert_all()
        )
        with self._lake.syncing(table):
            merger.execute()


def _is_all(info: StreamInfo, end: StreamPlace | None) -> bool:
    """Whether a stream is closed and archived to its end."""
    if byte_position(info.tail_offset) == 0:
        return info.closed
    return end is not None and end.ended and end.offset == info.tail_offset
