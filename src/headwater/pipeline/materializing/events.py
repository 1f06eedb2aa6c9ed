"""The events of a batch as a DataFrame: their columns, their errors, and their buckets."""

from __future__ import annotations

import json
import re

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    MapType,
    NullType,
    StructType,
    VariantType,
)

from headwater.errors import OptionError, SchemaError
from headwater.pipeline.materializing.layout import BUCKET, OTHER, RESET, Layout
from headwater.pipeline.materializing.settings import MaterializeSettings, column_of
from headwater.spark.columns import BAD_COLUMNS, STATE_COLUMNS, ddl
from headwater.spark.positions import BYTE_POSITION_SQL, INCARNATION_SQL
from headwater.spark.values import ValueDecoder

_BATCH_BITS = 32  # if offsets do not count bytes, the order is the batch number, then the position in these bits
_NOT_COMPARED = (StructType, ArrayType, MapType, VariantType)
_NOT_ORDERED = (*_NOT_COMPARED, BooleanType, BinaryType, NullType, AnsiIntervalType, CalendarIntervalType)
_READ = (
    "stream",
    "offset",
    "position",
    "order",
    "type",
    "key",
    "operation",
    "value",
    "old_value",
    "timestamp",
    "control",
    "append_time",
)
_PLACED = ("stream", "offset", "position", "incarnation", "begin", "order", "updated_at")
_WANTED = "_wanted"
_EVERY = ("stream", "offset", "incarnation", "begin", "order", "type", "key", "updated_at", "control", "bad", "message")


class EventColumns:
    """Makes the columns of a batch from the events of a `stream-state` source."""

    def __init__(self, settings: MaterializeSettings) -> None:
        self._settings = settings
        self._fields = _fields(settings.schema) if settings.schema is not None else None
        if self._fields is not None:
            names = [column_of(name).lower() for name in self._fields.names]
            if len(set(names)) < len(names):
                raise SchemaError("the schema has the same field twice; column names are case-insensitive")
        known = {column_of(name) for name in self._fields.names} if self._fields is not None else {"key", "value"}
        kinds = {} if self._fields is None else {column_of(one.name): one.dataType for one in self._fields}
        for name in (*settings.keys, *(settings.tracked or ())):
            if name not in known | {"key"}:
                raise OptionError(f"there is no column {name}; the columns are {', '.join(sorted(known | {'key'}))}")
            if isinstance(kinds.get(name), _NOT_COMPARED):
                raise OptionError(f"{name} is {kinds[name].simpleString()}, which cannot be compared")

    @property
    def source_schema(self) -> str:
        """The schema to request from the source, with only the needed columns."""
        settings = self._settings
        needed = [name for name in _READ if name in _ALWAYS or self._uses(name)]
        value = "STRING"
        if settings.schema is not None:
            value = f"STRUCT<{settings.schema}>"
            if settings.type is not None:
                value = f"STRUCT<{_quoted(settings.type)}: {value}>"
        kinds = {**{name: STATE_COLUMNS[name] for name in needed}, **BAD_COLUMNS}
        if "old_value" in kinds and settings.schema is not None:
            kinds["old_value"] = f"STRUCT<{settings.schema}>"
        return ddl(kinds, value)

    @property
    def source_options(self) -> dict[str, str]:
        settings = self._settings
        finds_bad = settings.keys != ("key",) or settings.sequence_by is not None  # among events the source accepts
        options = {"badEvents": "keepMessages" if finds_bad else "keep", "deleteValues": "true"}
        if not (finds_bad or settings.is_history):
            options["latestOnly"] = "true"  # no other event can be in the result
        if settings.schema is None:
            return options
        by_type = settings.schema if settings.type is None else json.dumps({settings.type: settings.schema})
        return {**options, "valueSchema": by_type}

    def _uses(self, name: str) -> bool:
        if name == "old_value":
            return self._settings.keys != ("key",)
        return any(name in (text or "") for text in (self._settings.sequence_by, self._settings.apply_as_deletes))

    def prepare(self, events: DataFrame, batch: int = 0) -> DataFrame:
        """Changes, resets and bad events, each with all the columns that the merge and the quarantine need.

        Of other events only the first one of each range is kept, without its content, because it may be the only one
        that shows that a stream was created again.
        """
        settings = self._settings
        placed = _wanted(events.select(*self._placed(events, batch), *self._values(events)), settings.type)
        deleted = F.expr("operation = 'delete'")
        if settings.apply_as_deletes is not None:
            deleted = deleted | F.coalesce(F.expr(settings.apply_as_deletes).cast("boolean"), F.lit(False))
        columns = [F.coalesce(deleted, F.lit(False)).alias("deleted")]
        if settings.sequence_by is not None:
            columns.append(F.expr(settings.sequence_by).alias("sequence"))
        checked = placed.select("*", *columns)
        reason = F.coalesce(F.col("bad"), F.when(F.col("control").isNull(), self._reason(checked)))
        text = F.when(reason.isNotNull(), F.col("message"))
        names = [*_EVERY, *self.payload_names, *checked.columns[len(placed.columns) :]]
        kept = checked.withColumns({"bad": reason, "message": text}).select(*map(_column, dict.fromkeys(names)))
        is_change = F.col("bad").isNull() & F.col("control").isNull()
        identity = F.when(is_change, F.xxhash64("stream", "type", *map(_column, settings.keys)))
        hashed = F.coalesce(identity, F.xxhash64("stream", "incarnation", "order"))
        return kept.select(F.pmod(hashed, F.lit(settings.buckets)).cast("int").alias(BUCKET), "*")

    @property
    def payload_names(self) -> list[str]:
        return ["key", *(["value"] if self._fields is None else map(column_of, self._fields.names))]

    def layout(self, events: DataFrame) -> Layout:
        """The layout of the tables for these columns. Spark determines the types of expressions."""
        settings = self._settings
        try:
            schema = self.prepare(events).schema
        except AnalysisException as error:
            message = one_line(error)
            raise OptionError(f"sequence_by or apply_as_deletes is not valid over the columns: {message}") from None
        if settings.sequence_by is not None and isinstance(schema["sequence"].dataType, _NOT_ORDERED):
            kind = schema["sequence"].dataType.simpleString()
            raise OptionError(f"sequence_by is {kind}; it must be a number, a time or text")
        arrow = to_arrow_schema(schema, timezone="UTC")
        sequence = arrow.field("sequence").type if settings.sequence_by is not None else None
        return Layout(
            pa.schema([pa.field(name, arrow.field(name).type) for name in self.payload_names]),
            keys=settings.keys,
            sequence=sequence,
            is_history=settings.is_history,
            tracked=settings.tracked,
        )

    def _placed(self, events: DataFrame, batch: int) -> list[Column]:
        """The order of an event. If offsets do not count bytes, a batch has one range of each stream."""
        begin, life = F.expr(BYTE_POSITION_SQL), F.expr(INCARNATION_SQL)
        counted = F.lit(batch << _BATCH_BITS) + F.col("position")
        plain = [
            _null(name, "STRING").alias(name) if name not in events.columns else F.col(name)
            for name in ("stream", "offset", "type", "operation", "control", "bad", "message")
        ]
        time = F.col("append_time") if "append_time" in events.columns else F.lit(None).cast("timestamp")
        stamped = [F.expr("try_cast(timestamp AS TIMESTAMP) AS timestamp")] if "timestamp" in events.columns else []
        return [
            *plain,
            *stamped,
            F.col("position"),
            F.greatest(F.coalesce(life, F.lit(0)), F.lit(0)).alias("incarnation"),
            F.greatest(F.coalesce(begin, F.lit(0)), F.lit(0)).alias("begin"),
            F.coalesce(F.col("order"), counted).alias("order"),
            time.alias("updated_at"),
            time.alias("append_time"),
        ]

    def _values(self, events: DataFrame) -> list[Column]:
        if self._fields is None:
            return [F.col("key"), F.col("value")]
        settings = self._settings
        at = "value" if settings.type is None else f"value.{_quoted(settings.type)}"
        columns = [F.col("key")]
        for name in self._fields.names:
            value = F.col(f"{at}.{_quoted(name)}")
            if column_of(name) in settings.keys and "old_value" in events.columns:  # a delete may have no value
                value = F.coalesce(value, F.col(f"old_value.{_quoted(name)}"))
            columns.append(value.alias(column_of(name)))
        return columns

    def _reason(self, events: DataFrame) -> Column:
        """Why a valid state event cannot be applied."""
        reason = F.lit(None).cast("string")
        for name in self._settings.keys:
            reason = F.coalesce(reason, F.when(_column(name).isNull(), F.lit(f"no {name}, which is part of the key")))
        if self._settings.sequence_by is not None:
            missing = F.col("sequence").isNull()
            if events.schema["sequence"].dataType.typeName() in ("float", "double"):
                missing = missing | F.isnan("sequence")
            reason = F.coalesce(reason, F.when(missing, F.lit(f"no sequence: {self._settings.sequence_by} is null")))
        return reason


def _wanted(events: DataFrame, kind: str | None) -> DataFrame:
    is_wanted = F.coalesce(F.col("control") == RESET, F.lit(True))
    if kind is not None:
        is_own = F.col("type").eqNullSafe(kind) | (F.col("type").isNull() & F.col("bad").isNotNull())
        is_wanted = F.when(F.col("control").isNull(), is_own).otherwise(is_wanted)
    columns = {
        name: F.when(F.col(_WANTED), _column(name)) for name in events.columns if name not in (*_PLACED, "control")
    }
    control = F.when(F.col(_WANTED), F.col("control")).otherwise(F.lit(OTHER))
    kept = events.withColumn(_WANTED, is_wanted).where(F.col(_WANTED) | (F.col("position") == 0))
    return kept.withColumns({**columns, "control": control}).drop(_WANTED, "position")


_ALWAYS = frozenset(_READ) - {"timestamp", "old_value"}


def _fields(schema: str) -> StructType:
    try:
        fields = StructType.fromDDL(schema)
    except PySparkException as error:
        raise OptionError(
            f"schema must be the fields of a value, such as name STRING, age INT: {one_line(error)}"
        ) from None
    if not isinstance(fields, StructType):
        raise OptionError(f"schema must be the fields of a value, such as name STRING, age INT; got {schema}")
    for name in fields.names:
        if "." in name:
            raise OptionError(f"schema has the field {name}: Spark does not support dots in names here")
    try:
        ValueDecoder(fields, pa.null())
    except SchemaError as error:
        raise OptionError(f"schema must be the fields of a value: {error}") from None
    return fields


def one_line(error: Exception) -> str:
    """What Spark says about an expression, without its class of error, the query and the plan."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[[A-Z0-9_.]+\] |\.? SQLSTATE: .*$", "", line.strip())


def _column(name: str) -> Column:
    return F.col(_quoted(name))


def _null(name: str, kind: str) -> Column:
    return F.lit(None).cast(kind).alias(name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
