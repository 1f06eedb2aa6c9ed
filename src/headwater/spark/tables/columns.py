"""The columns of a table in Spark."""

from __future__ import annotations

from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from headwater.errors import SchemaError

COLUMNS: dict[str, DataType] = {
    "seqno": LongType(),
    "timestamp": TimestampType(),
    "action": StringType(),
    "key": StringType(),
    "record": StringType(),
}
SCHEMA = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])


def check_schema(schema: StructType) -> None:
    """Check a user's schema, which may leave out columns."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise SchemaError(f"there is no column {field.name}; the columns are {', '.join(COLUMNS)}")
        if field.dataType != COLUMNS[field.name]:
            message = f"the column {field.name} cannot be {field.dataType.simpleString()}"
            raise SchemaError(f"{message}; read it with its own type, then cast it or parse it with from_json")
