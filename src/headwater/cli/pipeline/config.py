"""The options of the jobs, defined once for flags and TOML files. This module does not need Spark.

A file for one job has the options of that job. A file for several jobs has their common options, and a table
`[jobs.NAME]` for each job, whose `job` is the kind of the job.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from headwater import limits
from headwater.cli.connecting import DEFAULT_URL
from headwater.errors import OptionError
from headwater.options import about, check_known, is_list, read_toml, underscored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipeline.connecting import Connecting
    from headwater.pipeline.jobs import Job

Names: TypeAlias = list[str]
Count: TypeAlias = Annotated[int, Meta(gt=0)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65_535)]
_WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
S = TypeVar("S", bound=msgspec.Struct)


class JobOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of every job."""

    job: ClassVar[str] = ""
    renamed: ClassVar[Mapping[str, str]] = {}  # options that have another name in the library

    url: Annotated[str, about("The server.")] = DEFAULT_URL
    token: Annotated[str | None, about("Sent as a bearer token.")] = None
    token_file: Annotated[str | None, about("A file with the bearer token, read again when it changes.")] = None
    header: Annotated[dict[str, str], about("Sent with every request.", metavar="'NAME: VALUE'")] = {}
    ca_file: Annotated[str | None, about("Trust the authorities in this file (PEM), and no others.")] = None
    client_certificate: Annotated[str | None, about("A certificate (PEM) to show to the server.")] = None
    client_key: Annotated[str | None, about("Its key, if it is in another file.")] = None

    def start(self, spark: SparkSession, name: str) -> Job:
        """Run the job. The jobs are imported here, because they import Spark."""
        function: Callable[..., Job] = getattr(importlib.import_module("headwater.pipeline"), self.job)
        fields = [field for field in msgspec.structs.fields(self) if getattr(self, field.name) != field.default]
        names = {"header": "headers", **self.renamed}
        given = {names.get(field.name, field.name): getattr(self, field.name) for field in fields}
        return function(spark, name=name, **{"url": self.url, **given})

    @property
    def connecting(self) -> Connecting:
        """How to connect to the server, besides the URL and a token."""
        return {
            "token_file": self.token_file,
            "headers": self.header,
            "ca_file": self.ca_file,
            "client_certificate": self.client_certificate,
            "client_key": self.client_key,
        }

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


class _Reading(_Repeated, kw_only=True, frozen=True, forbid_unknown_fields=True):
    helper_tables: ClassVar[Mapping[str, str]] = {"table of streams": ".streams"}  # by what follows the table's name

    streams: Annotated[str, about("Paths of streams, a,b, or a glob: orders/*, orders/**.")]
    table: Annotated[str, about("The Delta table: a directory, or a URL such as s3://bucket/table.")]
    checkpoint: Annotated[str | None, about("Where the job keeps its place. Default: TABLE.checkpoint.")] = None
    starting_offsets: Annotated[
        str | None, about("First start: earliest, latest, or offsets by stream as JSON. Default: earliest.")
    ] = None
    starting_timestamp: Annotated[str | None, about("First start: the data appended at or after a time.")] = None
    max_records: Annotated[Count | None, about("Messages in one batch at most.")] = None
    max_bytes: Annotated[Count | None, about("Bytes in one batch at most.")] = None
    fail_on_data_loss: Annotated[bool, about("Fail if a stream was deleted or created again before it was read.")] = (
        True
    )
    compact_every: Annotated[int, about("Batches between two compactions; 0: none."), Meta(ge=0)] = (
        limits.PIPELINE_COMPACT_EVERY
    )
    retain_hours: Annotated[int, about("Hours that files and log of older versions are kept."), Meta(ge=1)] = (
        limits.PIPELINE_RETAIN_H
    )

    def read_streams(self) -> str:
        return self.streams

    def places(self) -> dict[str, str]:
        table = self.table.rstrip("/")
        helpers = {what: f"{table}{ending}" for what, ending in self.helper_tables.items()}
        return {"table": table, "checkpoint": self.checkpoint or f"{table}.checkpoint", **helpers}


class ArchiveOptions(_Reading, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "archive"

    every_s: Annotated[float, about("Minimum number of seconds between two batches."), Meta(gt=0)] = (
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


class MaterializeOptions(_Reading, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "materialize"
    helper_tables: ClassVar[Mapping[str, str]] = {
        "table of streams": ".streams",
        "table of kept events": ".tombstones",
        "quarantine": ".quarantine",
    }
    renamed: ClassVar[Mapping[str, str]] = {
        "scd": "stored_as_scd_type",
        "track_history": "track_history_column_list",
    }

    every_s: Annotated[float, about("Minimum number of seconds between two batches."), Meta(gt=0)] = (
        limits.PIPELINE_MATERIALIZE_EVERY_S
    )
    type: Annotated[str | None, about("The type of the entities. Default: all types.")] = None
    schema: Annotated[str | None, about("Fields of the values: 'name STRING, total DOUBLE'. Default: JSON text.")] = (
        None
    )
    keys: Annotated[Names | None, about("Fields of the value that identify a row. Default: the event's key.")] = None
    sequence_by: Annotated[str | None, about("What orders the events of a key. Default: their stream.")] = None
    apply_as_deletes: Annotated[str | None, about("An SQL expression: events for which it holds are deletes.")] = None
    scd: Annotated[int, about("1: the current state. 2: the history."), Meta(ge=1, le=2)] = 1
    track_history: Annotated[Names | None, about("SCD 2: columns whose changes make a new row. Default: all.")] = None
    path: Annotated[str, about("How rows are merged: auto, merge or buckets.")] = "auto"
    buckets: Annotated[Count | None, about("Buckets of a new table. Default: by the size of the streams.")] = None


class PublishOptions(_Repeated, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "publish"

    table: Annotated[str, about("The Delta table: a directory or a URL.")]
    keys: Annotated[Names, about("Columns that make the key: K, or K,K.")]
    type: Annotated[str | None, about("The type of the entities, with --to.")] = None
    to: Annotated[str | None, about("The state stream to publish to.")] = None
    to_table: Annotated[str | None, about("The table of the server to publish to.")] = None
    columns: Annotated[Names | None, about("Columns that make the value. Default: all but the keys.")] = None
    value_column: Annotated[str | None, about("The column that has the value as JSON text, instead.")] = None
    checkpoint: Annotated[str | None, about("Where the job keeps its place. Default: TABLE.published-…")] = None
    every_s: Annotated[float, about("Seconds between two checks of the table."), Meta(gt=0)] = limits.PIPELINE_POLL_S

    def places(self) -> dict[str, str]:
        target = f"stream {self.to}" if self.to is not None else f"table {self.to_table}"
        return {"checkpoint": self.checkpoint or f"{self.table.rstrip('/')}.published-… for the {target} of {self.url}"}

    def inputs(self) -> dict[str, str]:
        return {"table": self.table}

    def written_streams(self) -> str | None:
        return self.to


class SnapshotOptions(_Repeated, kw_only=True, frozen=True, forbid_unknown_fields=True):
    job: ClassVar[str] = "snapshot"

    streams: Annotated[str, about("Paths of state streams, a,b, or a glob: orders/*, orders/**.")]
    every_s: Annotated[float, about("Seconds between two rounds."), Meta(gt=0)] = limits.PIPELINE_SNAPSHOT_EVERY_S
    min_bytes: Annotated[int, about("Bytes a stream must have grown by since its last snapshot."), Meta(gt=0)] = 1
    grace_s: Annotated[float, about("Seconds that a snapshot is kept after the next one."), Meta(ge=0)] = (
        limits.PIPELINE_SNAPSHOT_GRACE_S
    )

    def read_streams(self) -> str:
        return self.streams


KINDS: dict[str, type[JobOptions]] = {
    kind.job: kind for kind in (ArchiveOptions, ReplayOptions, MaterializeOptions, PublishOptions, SnapshotOptions)
}


class SessionOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the Spark session and its metrics."""

    master: Annotated[str, about("Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")] = "local[*]"
    conf: Annotated[dict[str, str], about("Any setting of Spark.", metavar="KEY=VALUE")] = {}
    metrics_port: Annotated[Port | None, about("Serve metrics for Prometheus on this port.")] = None


class PipelineFile(msgspec.Struct, frozen=True):
    """The content of a file: the session, and jobs by name."""

    session: SessionOptions
    jobs: dict[str, JobOptions]


def load_pipeline(path: Path, overrides: Mapping[str, Any] | None = None) -> PipelineFile:
    """Read a file of jobs. Options above `[jobs.NAME]` are for every job that has them; `overrides` take precedence."""
    overrides = tables_parsed(overrides or {}, "the options")
    given = read_toml(path)
    tables = given.pop("jobs", None)
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise OptionError(f"{path} has no jobs: each is a table [jobs.NAME] with job = one of {', '.join(KINDS)}")
    given = layered(tables_parsed(given, str(path)), overrides)
    session = {name: given.pop(name) for name in SessionOptions.__struct_fields__ if name in given}
    kinds = {name: _kind_of(name, table) for name, table in tables.items()}
    known = {name for kind in kinds.values() for name in kind.__struct_fields__}
    check_known(given, {*known, *SessionOptions.__struct_fields__, "jobs"}, str(path))
    jobs = {}
    for name, table in tables.items():
        shared = {key: value for key, value in given.items() if key in kinds[name].__struct_fields__}
        where = f"[jobs.{name}]"
        own = underscored({key: value for key, value in table.items() if key != "job"}, where)
        forced = {key: value for key, value in overrides.items() if key in shared}
        jobs[name] = job_options(kinds[name], layered(shared, tables_parsed(own, where), forced), where)
    _refuse_shared_places(jobs)
    return PipelineFile(session_options(session, str(path)), jobs)


def _refuse_shared_places(jobs: Mapping[str, JobOptions]) -> None:
    """Check that no two jobs write the same table or use the same checkpoint, and that none is inside another."""
    from headwater.pipeline.locations import check_apart

    owners: dict[str, str] = {}
    for name, options in jobs.items():
        for what, place in options.places().items():
            path = re.sub(r"^file:(//)?", "", place)
            first = owners.setdefault(path if _WITH_SCHEME.match(path) else os.path.realpath(path), name)
            if first != name:
                raise OptionError(f"[jobs.{first}] and [jobs.{name}] have the same {what}, {place}; give each its own")
    named = {f"[jobs.{name}]": {**options.places(), **options.inputs()} for name, options in jobs.items()}
    check_apart({f"the {what} of {name}": place for name, places in named.items() for what, place in places.items()})


def _kind_of(name: str, table: Mapping[str, Any]) -> type[JobOptions]:
    kind = table.get("job")
    if kind not in KINDS:
        raise OptionError(f"[jobs.{name}] needs job = one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind]


def job_options(kind: type[JobOptions], given: Mapping[str, Any], where: str) -> JobOptions:
    """Check the options of one job. Errors name their source, `where`."""
    given = underscored(given, where)
    defaults = {"url": os.environ.get("HEADWATER_URL"), "token": os.environ.get("HEADWATER_TOKEN")}
    known = {name: value for name, value in defaults.items() if value is not None}
    return _convert(kind, layered(known, given), where)


def session_options(given: Mapping[str, Any], where: str) -> SessionOptions:
    """Check the options of the session, as far as this is possible without Spark."""
    from headwater.spark.home import check_master

    options = _convert(SessionOptions, given, where)
    check_master(options.master)
    for key in options.conf:
        if key in _OWN_SETTINGS:
            raise OptionError(f"{where}: conf has {key}; {_OWN_SETTINGS[key]}")
        if not re.fullmatch(r"spark\.[!-<>-~]+", key):
            raise OptionError(f"{where}: conf must have settings of Spark, spark.KEY=VALUE, got {key!r}")
    return options


_OWN_SETTINGS = {
    "spark.master": "set it with master",
    "spark.remote": "a Spark Connect server cannot run jobs",
    "spark.api.mode": "Spark Connect cannot run jobs",
    "spark.submit.deployMode": "the command is the driver",
}
_PAIRS = {  # options with values by name: how one is written as text, and the error
    "header": (re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~]*?)[ \t]*"), "'NAME: VALUE' in printable ASCII"),
    "conf": (re.compile(r"([^=\s]+)=(.*)", re.DOTALL), "KEY=VALUE"),
}
_CREDENTIALS = ("token", "token_file")


def tables_parsed(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options with `header` and `conf` as tables of text: a list of texts is one, and so are dotted keys of TOML."""
    return {name: _table(name, value, where) if name in _PAIRS else value for name, value in given.items()}


def _table(name: str, value: Any, where: str) -> dict[str, str]:
    """Errors do not show values, which may be secrets."""
    form, expected = _PAIRS[name]
    if isinstance(value, dict):
        pairs = list(_flattened(value, ""))
    elif isinstance(value, list) and all(isinstance(text, str) for text in value):
        matches = [(text, form.fullmatch(text)) for text in value]
        for text, match in matches:
            if match is None:
                raise OptionError(f"{where}: {name} must be {expected}, got {re.split('[:=]', text)[0][:80]!r}")
        pairs = [(match[1], match[2]) for _, match in matches if match is not None]
    else:
        raise OptionError(f"{where}: {name} must be a table, or a list of {expected}")
    table: dict[str, str] = {}
    for key, one in pairs:
        key = key.lower() if name == "header" else key
        if key in table:
            raise OptionError(f"{where}: {name} has {key} twice")
        if not isinstance(one, str | int | float):
            raise OptionError(f"{where}: the {name} {key} must be text, a number, true or false")
        table[key] = str(one).lower() if isinstance(one, bool) else str(one)
    return table


def _flattened(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of which later ones take precedence. Tables are joined, and a credential replaces any earlier one."""
    found: dict[str, Any] = {}
    for layer in layers:
        if any(name in layer for name in _CREDENTIALS) or "authorization" in layer.get("header", {}):
            found = {name: value for name, value in found.items() if name not in _CREDENTIALS}
            if "header" in found:
                found["header"] = {name: one for name, one in found["header"].items() if name != "authorization"}
        for name, value in layer.items():
            found[name] = {**found.get(name, {}), **value} if name in _PAIRS else value
    return found


def _convert(kind: type[S], given: Mapping[str, Any], where: str) -> S:
    hints = get_type_hints(kind)
    check_known(given, kind.__struct_fields__, where)
    lists = {name: value for name, value in given.items() if isinstance(value, str) and is_list(hints[name])}
    split = {name: [part.strip() for part in value.split(",") if part.strip()] for name, value in lists.items()}
    try:
        return msgspec.convert({**given, **split}, kind)
    except msgspec.ValidationError as error:
        told = str(error).replace("Object missing required field", "missing:").replace(" - at `$.", ": `")
        raise OptionError(f"{where}: {told}") from None
