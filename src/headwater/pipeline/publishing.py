"""Publishes the changes of a Delta table or a query to a state stream or a table of a server, exactly once.

A version of the table is published as the difference to the previous one. The two versions are saved before anything
is sent, so that after a crash the same rows are sent with the same number, which the server recognises.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from headwater import limits
from headwater.errors import BodyTooLargeError, DataLossError, OptionError, PartialWriteError, SchemaError
from headwater.pipeline.checkpoints import beside, check_file_system
from headwater.pipeline.lake import Lake
from headwater.pipeline.locations import absolute, is_url, local_path
from headwater.pipeline.options import PublishOptions, names_of
from headwater.pipeline.running import LoopJob, Step, StreamingJob, cause_of, start_loop, start_query
from headwater.pipeline.scanning import paths_of, scan
from headwater.pipeline.targets import PublishTarget, TargetIdentity
from headwater.spark.values import holds
from headwater.state.checkpoints import load, save

log = logging.getLogger(__name__)

STATE_FILE = "published.json"
TARGET_FILE = "target.json"  # in the checkpoint of a query


def start(spark: SparkSession, options: PublishOptions) -> LoopJob | StreamingJob:
    """Start the job."""
    target = PublishTarget(options)
    target.check()
    shape = Shape(names_of(options.keys) or [], names_of(options.columns), options.value_column)
    if options.rows is not None:
        return _publish_rows(options.rows, target, shape, options)
    table = absolute(options.table or "")
    if not Lake(table).exists():
        raise OptionError(f"there is no Delta table at {table}")
    Lake(table).open()  # refuses a table that cannot be read before the checkpoint is created
    place = local_path(default_checkpoint(table, options))
    if place is None:
        raise OptionError(f"the checkpoint of publish must be a directory on a disk, got {options.checkpoint}")
    publishing = _Publishing(spark, Lake(table), target, shape, place)
    return start_loop(
        publishing.steps, name=options.label, once=options.once, every_s=options.every_s, checkpoint=place
    )


def default_checkpoint(table: str, options: PublishOptions) -> str:
    """The default checkpoint: beside the table, one for each target."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", options.to or f"table-{options.to_table}")
    mark = hashlib.sha256(f"{options.url} {options.target}".encode()).hexdigest()[:8]
    return beside(table, f"published-{plain}-{mark}", options.checkpoint)


class Shape(msgspec.Struct, frozen=True):
    """How rows become keys and values."""

    keys: list[str]
    columns: list[str] | None
    value_column: str | None

    def needed(self, names: Sequence[str]) -> list[str]:
        """The columns to read. Raises an error if one does not exist."""
        missing = [name for name in (*self.keys, *self._chosen(names)) if name not in names]
        if missing:
            raise OptionError(f"there is no column {', '.join(missing)}; the columns are {', '.join(names)}")
        return [*self.keys, *self._chosen(names)]

    def _chosen(self, names: Sequence[str]) -> list[str]:
        if self.value_column is not None:
            return [self.value_column]
        return [name for name in (names if self.columns is None else self.columns) if name not in self.keys]

    def key(self) -> Column:
        """One column as text; several as a JSON array of texts."""
        parts = [
            F.coalesce(F.col(f"`{name}`").cast("string"), _failure(f"the key {name} is null")) for name in self.keys
        ]
        return parts[0] if len(parts) == 1 else F.to_json(F.array(*parts))

    def value(self, names: Sequence[str], schema: StructType) -> Column:
        if self.value_column is not None:
            column = F.col(f"`{self.value_column}`")
            return F.coalesce(column, _failure(f"{self.value_column} is null"))
        columns = {name: F.col(f"`{name}`") for name in self._chosen(names)}
        wrong = [
            F.when(non_finite(column, schema[name].dataType), _failure(f"{name} has a number that JSON does not have"))
            for name, column in columns.items()
            if name in schema.names and holds(schema[name].dataType, (FloatType, DoubleType))
        ]
        text = F.to_json(F.struct(*columns.values()), {"ignoreNullFields": "false"})
        return F.coalesce(*wrong, text)


def non_finite(column: Column, kind: DataType) -> Column:
    """Whether a value is or contains NaN or an infinity, which Spark would write as text."""
    if isinstance(kind, FloatType | DoubleType):
        return F.isnan(column) | F.abs(column).eqNullSafe(F.lit(float("inf")))
    if isinstance(kind, ArrayType):
        return F.exists(column, lambda one: non_finite(one, kind.elementType))
    if isinstance(kind, MapType):
        return F.exists(F.map_values(column), lambda one: non_finite(one, kind.valueType))
    fields = [field for field in getattr(kind, "fields", ()) if holds(field.dataType, (FloatType, DoubleType))]
    return reduce(Column.__or__, (non_finite(column[f.name], f.dataType) for f in fields), F.lit(False))


def _failure(what: str) -> Column:
    return F.raise_error(F.lit(f"headwater.errors.SchemaError: {what}")).cast("string")


class _Settings(msgspec.Struct, frozen=True):
    """The settings that a checkpoint belongs to. Differences between versions are only valid with the same settings."""

    url: str
    type: str | None
    keys: list[str]
    columns: list[str] | None
    value_column: str | None


class Skipped(msgspec.Struct, frozen=True):
    """A version that was not published, because its rows cannot be."""

    version: int
    reason: str


class _State(msgspec.Struct):
    """The published version and the one in progress. Saved before and after each step."""

    id: str
    table: str  # the id of the Delta table, which changes if the table is created again
    target: str
    published: int | None = None
    publishing: int | None = None
    settings: _Settings | None = None  # checkpoints of earlier versions do not have the last two
    sent_to: TargetIdentity | None = None  # also None if no row was sent yet
    skipped: list[Skipped] = []  # the last versions that could not be published
    sent_up_to: str | None = None  # the end of the target after the last rows
    files: str | None = None  # a hash of the files of the published version


def published_version(directory: Path) -> int | None:
    """The last version that was published completely, from the checkpoint of a job."""
    saved = load(directory / STATE_FILE)
    return None if saved is None else msgspec.json.decode(saved, type=_State).published


def skipped_versions(directory: Path) -> list[Skipped]:
    """The last versions that could not be published."""
    saved = load(directory / STATE_FILE)
    return [] if saved is None else msgspec.json.decode(saved, type=_State).skipped


class _Publishing:
    def __init__(self, spark: SparkSession, lake: Lake, target: PublishTarget, shape: Shape, directory: Path) -> None:
        self._spark = spark
        self._lake = lake
        self._target = target
        self._shape = shape
        self._settings = _Settings(
            target.options.url.rstrip("/"), target.options.type, shape.keys, shape.columns, shape.value_column
        )
        self._file = directory / STATE_FILE
        self._has_checked = False

    def steps(self) -> Iterator[Step]:
        state = self._load()
        version = self._lake.open().version()
        if not self._has_checked or state.publishing is not None or version != state.published:
            self._check_source(state)
            self._check_target(state)
        if state.publishing is not None:
            try:
                yield self._publish(state)
            except Exception as error:  # noqa: BLE001  # raised again, unless it is about the rows
                self._skip(state, version, error)
        if version != state.published:
            self._shape.needed(self._names(version))
            state.publishing = version
            self._save(state)
            yield self._publish(state)

    def _skip(self, state: _State, newest: int, error: Exception) -> None:
        """Give up a version whose rows cannot be published, if there is a newer one and nothing of it was sent."""
        cause = cause_of(error)
        is_refused = isinstance(cause, SchemaError | BodyTooLargeError) and not isinstance(cause, PartialWriteError)
        if not is_refused or state.publishing is None or newest == state.publishing:
            raise error
        log.warning("version %d of %s is skipped: %s", state.publishing, self._lake.uri, cause)
        skipped = Skipped(version=state.publishing, reason=str(cause))
        state.skipped = [*state.skipped, skipped][-limits.PIPELINE_SKIPPED_VERSIONS :]
        state.publishing = None
        self._save(state)

    def _publish(self, state: _State) -> Step:
        rows = self._send(state.published, state.publishing or 0, state.id)
        if rows and state.sent_to is None:
            state.sent_to = self._target.identity()
        if rows:
            state.sent_up_to = self._target.end()
        state.files = self._hash(state.publishing or 0)
        state.published, state.publishing = state.publishing, None
        self._save(state)
        return Step(rows=rows)

    def _send(self, before: int | None, after: int, job: str) -> int:
        new, old = self._paths(after), self._paths(before)
        if new == old:  # only metadata changed, or there are no rows yet
            return 0
        changes = self._difference(before, after, new, old).persist()
        try:
            rows = changes.count()
            if rows:
                self._target.write(changes, job, after)
        finally:
            changes.unpersist()
        return rows

    def _difference(self, before: int | None, after: int, new: set[str], old: set[str]) -> DataFrame:
        """The keys whose values differ. Reads only files that are not in both versions."""
        names = self._names(after)
        added = self._side(after, new - old, names).selectExpr("key", "NULL AS old", "value AS new")
        removed = self._side(before, old - new, names).selectExpr("key", "value AS old", "NULL AS new")
        twice = F.count("new") > 1
        by_key = added.unionByName(removed).groupBy("key")
        return (
            by_key.agg(F.max("old").alias("old"), F.max("new").alias("new"), twice.alias("twice"))
            .where("NOT (old <=> new) OR twice")
            .select(
                F.when(F.col("twice"), _twice()).otherwise(F.col("key")).alias("key"),
                F.col("new").alias("value"),
                F.col("old").isNull().alias("is_new"),
            )
        )

    def _side(self, version: int | None, paths: set[str], names: list[str]) -> DataFrame:
        if version is None:
            return self._spark.createDataFrame([], "key STRING, value STRING")
        wanted = self._shape.needed(names)
        there = set(self._names(version))
        rows = scan(self._spark, self._lake, version, sorted(paths), [name for name in wanted if name in there])
        for name in wanted:  # columns that were added later are null in the earlier version
            if name not in there:
                rows = rows.withColumn(name, F.lit(None))
        return rows.select(self._shape.key().alias("key"), self._shape.value(names, rows.schema).alias("value"))

    def _names(self, version: int) -> list[str]:
        return [field.name for field in self._lake.open(version).schema().fields]

    def _paths(self, version: int | None) -> set[str]:
        try:
            return set() if version is None else paths_of(self._lake, version)
        except DeltaError as error:
            message = f"version {version} of {self._lake.uri}, which was published last, is not in its log any more"
            raise DataLossError(f"{message}; start with a new checkpoint and target") from error

    def _load(self) -> _State:
        saved, table = load(self._file), self._id()
        if saved is None:
            return _State(uuid.uuid4().hex, table, self._target.name, settings=self._settings)
        state = msgspec.json.decode(saved, type=_State)
        if state.target != self._target.name:
            raise OptionError(f"the checkpoint {self._file.parent} belongs to {state.target}; use another one")
        if state.table != table:
            message = f"{self._lake.uri} is not the table that was published before"
            raise DataLossError(f"{message}; start with a new checkpoint and target")
        state.settings = state.settings or self._settings
        for name in ("type", "keys", "columns", "value_column"):
            before, now = getattr(state.settings, name), getattr(self._settings, name)
            if before != now:
                message = f"the checkpoint {self._file.parent} belongs to a job with {name} {before}, not {now}"
                raise OptionError(f"{message}; use another checkpoint and target")
        return state

    def _id(self) -> str:
        try:
            return str(self._lake.open().metadata().id)
        except TableNotFoundError:
            message = f"{self._lake.uri} does not exist any more"
            raise DataLossError(f"{message}; restore it, or start with a new checkpoint and target") from None

    def _hash(self, version: int) -> str:
        """A hash of the files of a version. Files have names that are used once."""
        return hashlib.sha256("\n".join(sorted(self._paths(version))).encode()).hexdigest()

    def _check_source(self, state: _State) -> None:
        """Check that the published version is the same one. It is not if the table was set back and grew again."""
        if state.published is not None and state.files not in (None, self._hash(state.published)):
            message = f"version {state.published} of {self._lake.uri} has other files than when it was published"
            raise DataLossError(f"{message}: the table was set back; start with a new checkpoint and target")

    def _check_target(self, state: _State) -> None:
        """Check that the target is the same one, because differences need the earlier versions. Its URL may change."""
        url = (state.settings or self._settings).url
        if state.sent_to is not None:
            identity = self._target.check_kept(state.sent_to, state.sent_up_to)
            if url != self._settings.url and not identity.is_surely(state.sent_to):
                raise OptionError(f"the checkpoint {self._file.parent} belongs to the server {url}; use another one")
        state.settings = self._settings
        self._has_checked = True

    def _save(self, state: _State) -> None:
        save(self._file, msgspec.json.encode(state))


def _twice() -> Column:
    message = F.concat(F.lit("headwater.errors.SchemaError: two rows have the key "), F.col("key"))
    return F.raise_error(message).cast("string")


def _publish_rows(rows: DataFrame, target: PublishTarget, shape: Shape, options: PublishOptions) -> StreamingJob:
    if not rows.isStreaming:
        raise OptionError("rows must be a streaming DataFrame; to publish a batch, write it to a Delta table")
    if options.checkpoint is None:
        raise OptionError("rows needs a checkpoint")
    checkpoint = absolute(options.checkpoint)
    if is_url(checkpoint):
        check_file_system(rows.sparkSession, checkpoint)
    shape.needed(rows.columns)
    publishing = _PublishingRows(target, local_path(checkpoint))
    publishing.check()
    changes = _changes_of(rows, shape, options.apply_as_deletes)
    return start_query(changes, publishing.work, name=options.label, checkpoint=checkpoint, once=options.once)


class _Sent(msgspec.Struct, frozen=True):
    """The target of a query after its last batch."""

    name: str
    target: TargetIdentity
    up_to: str | None  # its end; None if it is empty


class _PublishingRows:
    """Publishes the batches of a query. A checkpoint on a disk has the end of the target after the last batch."""

    def __init__(self, target: PublishTarget, directory: Path | None) -> None:
        self._target = target
        self._file = None if directory is None else directory / TARGET_FILE

    def check(self) -> None:
        """Refuse a checkpoint of another target, which has the rows of earlier batches."""
        sent = self._sent()
        if self._file is not None and sent is not None and sent.name != self._target.name:
            raise OptionError(f"the checkpoint {self._file.parent} belongs to {sent.name}; use another one")

    def work(self, batch: DataFrame, number: int, job: str) -> None:
        sent = self._sent()
        if sent is not None:
            self._target.check_kept(sent.target, sent.up_to)
        self._target.write(batch, job, number)
        if self._file is not None and (identity := self._target.identity()) is not None:
            save(self._file, msgspec.json.encode(_Sent(self._target.name, identity, self._target.end())))

    def _sent(self) -> _Sent | None:
        saved = None if self._file is None else load(self._file)
        return None if saved is None else msgspec.json.decode(saved, type=_Sent)


def _changes_of(rows: DataFrame, shape: Shape, deletes: str | None) -> DataFrame:
    value = shape.value(rows.columns, rows.schema)
    kept = value if deletes is None else F.when(~F.coalesce(F.expr(deletes), F.lit(False)), value)
    return rows.select(shape.key().alias("key"), kept.alias("value"), F.lit(None).cast("boolean").alias("is_new"))
