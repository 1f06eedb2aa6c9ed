"""The options of the jobs, declared once for keyword arguments, flags and TOML files. This module does not need Spark.

A field is a keyword argument. If it has a description, its encoded name is also a flag and a key of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from headwater import limits
from headwater.errors import OptionError
from headwater.options import about

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Moment: TypeAlias = datetime | str
else:
    DataFrame = Any
    Moment = str  # in flags and files

Names: TypeAlias = Sequence[str] | str  # a list, or a,b
Count: TypeAlias = Annotated[int, Meta(gt=0)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


class JobOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of every job. Paths are made absolute. On a cluster the files of the connection must be at the same paths
    on every machine."""

    job: ClassVar[str] = ""

    url: Annotated[str, about("The server.")]
    token: Annotated[str | None, about("Sent as a bearer token.")] = None
    token_file: Annotated[str | None, about("A file with the bearer token, read again when it changes.")] = None
    token_function: str | None = None  # module:function, as for the formats
    headers: Annotated[Mapping[str, str] | None, about("Sent with every request.", metavar="'NAME: VALUE'")] = (
        msgspec.field(default=None, name="header")
    )
    ca_file: Annotated[str | None, about("Trust the authorities in this file (PEM), and no others.")] = None
    client_certificate: Annotated[str | None, about("A certificate (PEM) to show to the server.")] = None
    client_key: Annotated[str | None, about("Its key, if it is in another file.")] = None
    name: str = ""  # of the running job; by default the kind of the job

    @property
    def label(self) -> str:
        return self.name or self.job

    def places(self) -> dict[str, str]:
        """The targets that only this job may write, by kind."""
        return {}

    def read_streams(self) -> str | None:
        """The streams that the job reads: paths, or a glob."""
        return None

    def written_streams(self) -> str | None:
        """The streams that the job writes: a path, or a glob."""
        return None

    def inputs(self) -> dict[str, str]:
        """The tables that the job reads."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # without the token


class _Repeated(JobOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    once: Annotated[bool, about("Process the data that is there now, and exit.")] = False


class StreamsOptions(_Repeated, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of jobs that read streams."""

    streams: Annotated[str, about("Paths of streams, a,b, or a glob: orders/*, orders/**.")]

    def read_streams(self) -> str:
        return self.streams


class TableOptions(StreamsOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of jobs that keep a table of streams."""

    helper_tables: ClassVar[Mapping[str, str]] = {"table of streams": ".streams"}  # by what follows the table's name

    table: Annotated[str, about("The Delta table: a directory, or a URL such as s3://bucket/table.")]
    checkpoint: Annotated[str | None, about("Where the job keeps its place. Default: TABLE.checkpoint.")] = None
    starting_offsets: Annotated[
        str | None, about("First start: earliest, latest, or offsets by stream as JSON. Default: earliest.")
    ] = None
    starting_timestamp: Annotated[Moment | None, about("First start: the data appended at or after a time.")] = None
    max_records: Annotated[Count | None, about("Messages in one batch at most.")] = None
    max_bytes: Annotated[Count | None, about("Bytes in one batch at most.")] = None
    fail_on_data_loss: Annotated[bool, about("Fail if a stream was deleted or created again before it was read.")] = (
        True
    )
    compact_every: Annotated[int, about("Batches between two compactions; 0: none."), Meta(ge=0)] = (
        limits.PIPELINE_COMPACT_EVERY
    )
    retain_hours: Annotated[
        Annotated[int, Meta(ge=1)] | None, about("Hours that files and log of older versions are kept.")
    ] = limits.PIPELINE_RETAIN_H  # None: for ever

    def places(self) -> dict[str, str]:
        table = self.table.rstrip("/")
        helpers = {what: f"{table}{ending}" for what, ending in self.helper_tables.items()}
        return {"table": table, "checkpoint": self.checkpoint or f"{table}.checkpoint", **helpers}


class ArchiveOptions(TableOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "archive"

    every_s: Annotated[Seconds, about("Minimum number of seconds between two batches.")] = (
        limits.PIPELINE_ARCHIVE_EVERY_S
    )


class ReplayOptions(JobOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "replay"

    table: Annotated[str, about("The archive: a directory or a URL.")]
    to: Annotated[str | None, about("Write below this path. Default: to the streams' own paths.")] = None
    streams: Annotated[str | None, about("A glob over the streams of the archive. Default: all.")] = None
    allow_gaps: Annotated[bool, about("Replay the rows that exist, although the archive lacks others.")] = False

    def written_streams(self) -> str:
        streams = self.streams or "**"
        return streams if self.to is None else f"{self.to.strip('/')}/{streams}"

    def inputs(self) -> dict[str, str]:
        return {"table": self.table}


class MaterializeOptions(TableOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "materialize"
    helper_tables: ClassVar[Mapping[str, str]] = {
        "table of streams": ".streams",
        "table of kept events": ".tombstones",
        "quarantine": ".quarantine",
    }

    max_bytes: Annotated[Count | None, about("Bytes in one batch at most.")] = limits.PIPELINE_BATCH_BYTES
    every_s: Annotated[Seconds, about("Minimum number of seconds between two batches.")] = (
        limits.PIPELINE_MATERIALIZE_EVERY_S
    )
    type: Annotated[str | None, about("The type of the entities. Default: all types.")] = None
    schema: Annotated[str | None, about("Fields of the values: 'name STRING, total DOUBLE'. Default: JSON text.")] = (
        None
    )
    keys: Annotated[Names | None, about("Fields of the value that identify a row. Default: the event's key.")] = None
    sequence_by: Annotated[str | None, about("What orders the events of a key. Default: their stream.")] = None
    apply_as_deletes: Annotated[str | None, about("An SQL expression: events for which it holds are deletes.")] = None
    stored_as_scd_type: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | Annotated[str, Meta(pattern="^[12]$")],
        about("1: the current state. 2: the history."),
    ] = msgspec.field(default=1, name="scd")
    track_history_column_list: Annotated[
        Names | None, about("SCD 2: columns whose changes make a new row. Default: all.")
    ] = msgspec.field(default=None, name="track_history")
    path: Annotated[
        Annotated[str, Meta(pattern="^(auto|merge|buckets)$")], about("How rows are merged: auto, merge or buckets.")
    ] = "auto"
    buckets: Annotated[
        Annotated[int, Meta(ge=1, le=limits.PIPELINE_BUCKETS_SET_MAX)] | None,
        about("Buckets of a new table. Default: by the size of the streams."),
    ] = None


class TargetOptions(_Repeated, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Where changes are published."""

    type: Annotated[str | None, about("The type of the entities, with --to.")] = None
    to: Annotated[str | None, about("The state stream to publish to.")] = None
    to_table: Annotated[str | None, about("The table of the server to publish to.")] = None

    @property
    def target(self) -> str:
        return f"the stream {self.to}" if self.to is not None else f"the table {self.to_table}"

    def written_streams(self) -> str | None:
        return self.to


class PublishOptions(TargetOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "publish"

    table: Annotated[str | None, about("The Delta table: a directory or a URL.")] = None
    rows: DataFrame | None = None  # a streaming DataFrame, instead of a table
    keys: Annotated[Names, about("Columns that make the key: K, or K,K.")]
    columns: Annotated[Names | None, about("Columns that make the value. Default: all but the keys.")] = None
    value_column: Annotated[str | None, about("The column that has the value as JSON text, instead.")] = None
    apply_as_deletes: str | None = None  # of rows: an SQL expression; rows for which it holds are deletes
    checkpoint: Annotated[str | None, about("Where the job keeps its place. Default: TABLE.published-…")] = None
    every_s: Annotated[Seconds, about("Seconds between two checks of the table.")] = limits.PIPELINE_POLL_S

    def __post_init__(self) -> None:
        if self.table is None and self.rows is None:
            raise OptionError("set table, a Delta table; in Python also rows, a streaming DataFrame")
        if self.table is not None and self.rows is not None:
            raise OptionError("set either table or rows, a streaming DataFrame")
        if not names_of(self.keys):
            raise OptionError("keys is missing: set it to the columns of the key")
        if self.columns is not None and self.value_column is not None:
            raise OptionError("set either columns or value_column, not both")
        if self.table is not None and self.apply_as_deletes is not None:
            raise OptionError("apply_as_deletes is for rows: removed rows of a table are always published as deletes")

    def places(self) -> dict[str, str]:
        default = f"{(self.table or '').rstrip('/')}.published-… for {self.target} of {self.url}"
        return {"checkpoint": self.checkpoint or default}

    def inputs(self) -> dict[str, str]:
        return {} if self.table is None else {"table": self.table}


class SnapshotOptions(StreamsOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "snapshot"

    every_s: Annotated[Seconds, about("Seconds between two rounds.")] = limits.PIPELINE_SNAPSHOT_EVERY_S
    min_bytes: Annotated[Count, about("Bytes a stream must have grown by since its last snapshot.")] = 1
    grace_s: Annotated[float, about("Seconds that a snapshot is kept after the next one."), Meta(ge=0)] = (
        limits.PIPELINE_SNAPSHOT_GRACE_S
    )


def names_of(names: Names | None) -> list[str] | None:
    """The names in a list, or in a text of names separated by commas. None if there are none."""
    if names is None:
        return None
    parts = names.split(",") if isinstance(names, str) else names
    return [name.strip() for name in parts if name.strip()] or None
