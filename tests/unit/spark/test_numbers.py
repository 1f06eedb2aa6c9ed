"""Which JSON numbers fit which types of a schema, as docs/spark.md has it."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from headwater.spark.values import ValueDecoder

INT, BIGINT, FLOAT, DOUBLE, DECIMAL = IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(5, 2)
BAD = "bad"  # the event goes to the quarantine


def column(kind: DataType, *texts: str) -> tuple[list[Any], list[str | None]]:
    schema = StructType([StructField("n", kind)])
    reasons: list[str | None] = [None] * len(texts)
    values = [f'{{"n":{text}}}'.encode() for text in texts]
    decoded = ValueDecoder(schema, to_arrow_type(schema)).column(values, reasons).to_pylist()
    return [None if row is None else row["n"] for row in decoded], reasons


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("1", INT, 1),
        ("1.0", INT, 1),
        ("1.5", INT, BAD),
        ("1e2", INT, 100),
        ("1.5e1", INT, 15),
        ("15e-1", INT, BAD),
        ("-0.0", INT, 0),
        ("0e999999999", INT, 0),
        ("1e999999999", INT, BAD),
        ("1e-999999999", INT, BAD),
        ("1e99999999999999999999", INT, BAD),
        ("2147483647", INT, 2**31 - 1),
        ("2147483647.0", INT, 2**31 - 1),
        ("2147483648", INT, BAD),
        ("-2147483648", INT, -(2**31)),
        ("-2147483649", INT, BAD),
        ('"1"', INT, BAD),
        ("true", INT, BAD),
        ("null", INT, None),
        ("127", ByteType(), 127),
        ("128", ByteType(), BAD),
        ("32768", ShortType(), BAD),
        ("3e4", ShortType(), 30_000),
        ("9223372036854775807", BIGINT, 2**63 - 1),
        ("9223372036854775807.0", BIGINT, 2**63 - 1),
        ("9223372036854775808", BIGINT, BAD),
        ("9007199254740993.0", BIGINT, 2**53 + 1),
        ("1e18", BIGINT, 10**18),
        ("1e19", BIGINT, BAD),
        ("1", FLOAT, 1.0),
        ("3.4028234e38", FLOAT, pytest.approx(3.4028234e38)),
        ("1e39", FLOAT, BAD),
        ("-1e39", FLOAT, BAD),
        ("1e400", FLOAT, BAD),
        ("1e-60", FLOAT, 0.0),
        ("16777217", FLOAT, 16777216.0),
        ("1e39", DOUBLE, 1e39),
        ("1e309", DOUBLE, BAD),
        ("9007199254740993", DOUBLE, 2.0**53),
        ("1e-400", DOUBLE, 0.0),
        ("1", DECIMAL, Decimal("1.00")),
        ("1.25", DECIMAL, Decimal("1.25")),
        ("1.2500", DECIMAL, Decimal("1.25")),
        ("1.255", DECIMAL, BAD),
        ("1e2", DECIMAL, Decimal("100.00")),
        ("999.99", DECIMAL, Decimal("999.99")),
        ("1000", DECIMAL, BAD),
        ('"1.25"', DECIMAL, Decimal("1.25")),
        ('"NaN"', DECIMAL, BAD),
        ("1e999999999", DECIMAL, BAD),
    ],
)
def test_numbers(text: str, kind: DataType, expected: Any) -> None:
    values, reasons = column(kind, text, "null")
    if expected is BAD:
        assert values == [None, None]
        assert reasons[0] is not None
        assert reasons[0].startswith("the value does not fit the schema: ")
    else:
        assert values == [expected, None]
        assert reasons == [None, None]


def test_the_sign_of_zero() -> None:
    values, _ = column(DOUBLE, "-0.0", "0.0")
    assert [math.copysign(1, value) for value in values] == [-1, 1]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "where"),
    [
        (FLOAT, "1.5", "1e39", "$.n"),
        (ArrayType(FLOAT), "[1.5]", "[1, 1e39]", "$.n[...]"),
        (MapType(StringType(), FLOAT), '{"a":1.5}', '{"b":1e39}', "$.n[...]"),
        (StructType([StructField("m", FLOAT)]), '{"m":1.5}', '{"m":1e39}', "$.n.m"),
    ],
)
def test_only_the_value_that_is_too_large_is_bad(kind: DataType, good: str, bad: str, where: str) -> None:
    values, reasons = column(kind, good, bad, good)
    assert values[0] == values[2] != values[1] is None
    assert reasons == [None, f"the value does not fit the schema: Number too large for FLOAT - at `{where}`", None]


def test_whole_numbers_inside_other_values() -> None:
    assert column(ArrayType(INT), "[1.0, 2, 3e0]", "[1.5]")[0] == [[1, 2, 3], None]
    assert column(MapType(StringType(), INT), '{"a":1.0}')[0] == [[("a", 1)]]
    inner = StructType([StructField("m", INT), StructField("t", StringType())])
    values, reasons = column(inner, '{"m":2.0,"t":"x"}', '{"m":2.0,"t":2.0}')
    assert values == [{"m": 2, "t": "x"}, None]
    assert reasons[1] == "the value does not fit the schema: Expected `str | null`, got `float` - at `$.n.t`"
