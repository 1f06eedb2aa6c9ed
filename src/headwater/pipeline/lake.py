"""Delta tables of the jobs: tasks write files, and the driver makes them visible with one commit per batch.

A commit has the job's id and the batch number as an application transaction. A batch that was committed is not
committed again, and of two drivers of one job the slower one gets a conflict. A second transaction identifies the
content of the batch, because a number can be used again for other rows if a checkpoint was set back.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from headwater.errors import BatchReusedError, JobConflictError, OptionError, SchemaError, UnsupportedTableError
from headwater.pipeline.features import check_readable, check_writable, refuse_unknown
from headwater.pipeline.locations import local_path
from headwater.pipeline.syncing import begin_sync, sync_all, sync_commits, sync_created, sync_directories

_COMPRESSION = "zstd"
_BUFFERED = 1024 * 1024  # bytes of a file
_DISTINCT = frozenset(
    {"key", "order", "position", "value"}
)  # columns that hardly repeat a value, so that a dictionary of values is no use


class DataFile(msgspec.Struct, frozen=True):
    """A data file that is not committed yet."""

    path: str  # below the table
    size: int
    partition: dict[str, str]
    stats: str

    def added(self) -> AddAction:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        return AddAction(self.path, self.size, self.partition, now_ms, True, self.stats)

    def removed(self) -> RemoveAction:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        return RemoveAction(self.path, True, now_ms, self.size, dict(self.partition))


class TableBatch(msgspec.Struct, frozen=True):
    """A batch of a job, as recorded in commits."""

    job: str
    number: int
    made_of: int  # a hash of where it ends in its streams
    beside: tuple[str, ...] = ()  # the tables beside the table that it has changed

    @property
    def transactions(self) -> list[Transaction]:
        others = [Transaction(f"{self.job}.{name}", self.number) for name in self.beside]
        return [Transaction(self.job, self.number), Transaction(self._range, self.made_of), *others]

    def also(self, name: str) -> TableBatch:
        """The batch, which has changed a table beside the table too."""
        return msgspec.structs.replace(self, beside=(*self.beside, name))

    @property
    def _range(self) -> str:
        return f"{self.job}.range"

    def range_in(self, table: DeltaTable) -> int | None:
        """What the last committed batch of the job was made of."""
        return table.transaction_version(self._range)

    def is_done(self, table: DeltaTable) -> bool:
        """Whether this batch, or one after it, was committed."""
        done = table.transaction_version(self.job)
        return done is not None and self.number <= done

    def check(self, table: DeltaTable) -> None:
        """Refuse a batch whose number was used for other rows, because its rows would be dropped."""
        done = table.transaction_version(self.job)
        if done is None or self.number > done:
            return
        made_of = self.range_in(table)
        if self.number < done or made_of not in (None, self.made_of):
            message = f"batch {self.number} of {table.table_uri} was repeated after batch {done} was committed"
            how = f"{message}, with other rows" if self.number == done else message
            raise BatchReusedError(f"{how}: the checkpoint was set back, or another run of the job is active")


class LocalFiles(msgspec.Struct, frozen=True):
    """The files of a table on a disk of this machine, opened without delta-rs, which takes longer for small ones."""

    directory: Path

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.OSFile(str(self.directory / path), "rb")

    @contextlib.contextmanager
    def open_output_stream(self, path: str) -> Iterator[pa.NativeFile]:
        """A new file, which has to be synced before a commit names it."""
        place = self.directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with (
            place.open("xb", buffering=0) as file,
            # a buffer of Arrow's own: with one of Python a thread waits for the interpreter at every page
            pa.BufferedOutputStream(pa.PythonFile(file, "w"), _BUFFERED) as sink,
        ):
            yield sink
            sink.flush()
            begin_sync(file.fileno())


TableFiles: TypeAlias = pyarrow.fs.PyFileSystem | LocalFiles


class Lake(msgspec.Struct, frozen=True):
    """The location of a Delta table: a directory, or a URL for delta-rs, with credentials in the environment."""

    uri: str

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri)

    def open(self, version: int | None = None) -> DeltaTable:
        """The table, unless another writer gave it a feature with which its files cannot be read as they are."""
        try:
            table = DeltaTable(self.uri, version=version)
        except DeltaError as error:  # delta-rs has no class for a feature that it does not know
            if not isinstance(error, TableNotFoundError):
                refuse_unknown(self.uri, pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri)))
            if "Unsupported" in str(error):
                raise UnsupportedTableError(f"{self.uri} cannot be read: {error}") from error
            raise
        check_readable(table)
        return table

    def check(self, schema: pa.Schema, partition_by: Sequence[str] = (), *, removes: bool) -> None:
        """Refuse a table that exists, if the job cannot write it, or another program made it.

        Columns may be missing, if they were added to the job later.
        """
        with contextlib.suppress(TableNotFoundError):
            table = self.open()
            check_writable(table, removes=removes)
            _check_columns(table, schema, partition_by)

    def create(
        self, schema: pa.Schema, partition_by: Sequence[str] = (), configuration: Mapping[str, str] | None = None
    ) -> DeltaTable:
        """The table; created if it does not exist."""
        try:
            table = self.open()
            check_writable(table, removes=False)
            return table
        except TableNotFoundError:
            table = DeltaTable.create(
                self.uri,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(configuration or {}),
                raise_if_key_not_exists=False,  # allow our own keys
            )
        if (directory := local_path(self.uri)) is not None:
            sync_created(directory)
        return table

    def files(self) -> TableFiles:
        """The files below the table, for tasks and the driver. Opened once for several of them, since an object store
        is connected to anew."""
        directory = local_path(self.uri)
        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri)) if directory is None else LocalFiles(directory)

    def write(self, rows: pa.Table, partition: Mapping[str, str], files: TableFiles | None = None) -> DataFile:
        """Write rows of one partition, without the partition columns, to a new file, and sync it."""
        file = self.write_unsynced(rows, partition, files or self.files(), stats_of(rows, [0])[0])
        self.sync([file])
        return file

    def write_unsynced(self, rows: pa.Table, partition: Mapping[str, str], files: TableFiles, stats: str) -> DataFile:
        """Write one of many files, which are synced together. `stats`: as `stats_of` tells."""
        folder = "/".join(f"{name}={value}" for name, value in partition.items())
        path = f"{folder}/{uuid.uuid4().hex}.parquet" if folder else f"{uuid.uuid4().hex}.parquet"
        with files.open_output_stream(path) as sink:
            pq.write_table(rows, sink, compression=_COMPRESSION, use_dictionary=_repeating(rows.schema))
            size = sink.tell()
        return DataFile(path, size, dict(partition), stats)

    def sync(self, files: Iterable[DataFile]) -> None:
        """Sync files on a disk. An object store has whole files only."""
        if (directory := local_path(self.uri)) is not None:
            sync_all([directory / file.path for file in files])

    def commit(
        self,
        table: DeltaTable,
        files: Sequence[DataFile],
        *,
        batch: TableBatch,
        replacing: Mapping[str, Sequence[str]] | None = None,
        removing: Sequence[DataFile] = (),
    ) -> None:
        """Commit files and the batch. They replace all files of the partitions in `replacing`.

        Files in `removing` are removed by the same commit. It fails if another commit removed one of them first.
        """
        check_writable(table, removes=bool(removing or replacing))
        directory = local_path(self.uri)
        if directory is not None:
            self._check_visible(directory, files)
            sync_directories(directory, [file.path for file in files])
        filters = [(name, "in", list(values)) for name, values in (replacing or {}).items()]
        with self.syncing(table, files=False):
            table.create_write_transaction(
                [*(file.added() for file in files), *(file.removed() for file in removing)],
                mode="overwrite" if filters else "append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                partition_filters=filters or None,
                commit_properties=noted(batch),
            )

    @contextlib.contextmanager
    def syncing(self, table: DeltaTable, *, files: bool = True) -> Iterator[None]:
        """Sync what delta-rs commits to a table on a disk. `files`: also the files, which delta-rs has written."""
        before = table.version()
        yield
        if (directory := local_path(self.uri)) is not None:
            sync_commits(directory, before, files=files)

    def _check_visible(self, directory: Path, files: Sequence[DataFile]) -> None:
        """Refuse files that a task wrote to a disk of another machine: the table would lack them."""
        for file in files:
            if not (directory / file.path).exists():
                message = (
                    f"a task has written {file.path} of the table {self.uri}, and it is not on the driver's machine"
                )
                raise OptionError(f"{message}: on a cluster a table is in an object store, or on a disk that all share")


def _check_columns(table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    wanted = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    other = sorted(field.name for field in table.schema().fields if wanted.get(field.name) != field.type)
    partitions = table.metadata().partition_columns
    if other or partitions != list(partition_by):
        difference = f"other columns ({', '.join(other)})" if other else f"other partitions ({', '.join(partitions)})"
        raise SchemaError(f"{table.table_uri} has {difference} than a table of this job; use another table")


def noted(batch: TableBatch) -> CommitProperties:
    """The commit properties for any other commit of a batch."""
    return CommitProperties(app_transactions=batch.transactions)


@contextlib.contextmanager
def telling_conflicts(lake: Lake, batch: TableBatch) -> Iterator[None]:
    """Turn the conflict of the slower one of two runs into a JobConflictError."""
    try:
        yield
    except CommitFailedError as error:
        if batch.is_done(lake.open()):
            message = f"batch {batch.number} of {lake.uri} was committed by another run of the job"
            raise JobConflictError(message) from error
        raise


def _repeating(schema: pa.Schema) -> list[str]:
    """The columns to store as numbers in a dictionary of their values."""
    return [name for name in schema.names if name not in _DISTINCT]


def stats_of(rows: pa.Table, starts: Sequence[int]) -> list[str]:
    """Statistics for file skipping, for each run of rows between two of `starts`, the last one to the end: rows, nulls,
    and the minimum and maximum of plain columns. Runs are not empty, unless there is one that has all rows."""
    row_counts = np.diff([*starts, rows.num_rows]).tolist()
    least: list[dict[str, Any]] = [{} for _ in starts]
    most: list[dict[str, Any]] = [{} for _ in starts]
    nulls: list[dict[str, int]] = [{} for _ in starts]
    for field in rows.schema:
        column = rows.column(field.name)
        if pa.types.is_nested(field.type):
            continue
        is_many = len(starts) > 1 and not column.null_count  # many small files, each with hardly any rows
        runs = [] if is_many else [column.slice(start, n) for start, n in zip(starts, row_counts, strict=True)]
        for number, of_run in enumerate(nulls):
            of_run[field.name] = 0 if is_many else runs[number].null_count
        if _is_ordered(field.type):
            extremes = _extremes_of_runs(column, starts) if is_many else map(_extremes, runs)
            for number, (lowest, highest) in enumerate(extremes):
                if lowest is not None:
                    least[number][field.name], most[number][field.name] = _plain(lowest), _plain(_up(highest))
    return [
        json.dumps({"numRecords": count, "minValues": of_least, "maxValues": of_most, "nullCount": of_nulls})
        for count, of_least, of_most, of_nulls in zip(row_counts, least, most, nulls, strict=True)
    ]


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _extremes(run: pa.ChunkedArray) -> tuple[Any, Any]:
    extremes = pc.min_max(run).as_py()
    return extremes["min"], extremes["max"]


def _extremes_of_runs(column: pa.ChunkedArray, starts: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """The minimum and maximum of each run of a column without nulls."""
    kind = pa.int32() if column.type.bit_width <= 32 else pa.int64()  # of dates and times
    numbers = column.cast(kind).to_numpy()
    bounds = [pa.array(extreme.reduceat(numbers, starts), kind) for extreme in (np.minimum, np.maximum)]
    return zip(*(bound.cast(column.type).to_pylist() for bound in bounds), strict=True)


def _up(value: Any) -> Any:
    """Round maximum timestamps up to milliseconds, because Delta truncates them and the maximum must not shrink."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        return value + timedelta(milliseconds=1)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value if isinstance(value, int | float | str | Decimal) else value.isoformat()
