"""Schemas of users for tables."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from headwater.errors import SchemaError
from headwater.spark.tables.columns import SCHEMA, check_schema


def test_schemas() -> None:
    check_schema(SCHEMA)
    check_schema(StructType().add("seqno", LongType()).add("timestamp", TimestampType()).add("key", StringType()))
    with pytest.raises(SchemaError, match="there is no column value"):
        check_schema(StructType().add("value", StringType()))
    with pytest.raises(SchemaError, match="seqno cannot be int"):
        check_schema(StructType().add("seqno", IntegerType()))
