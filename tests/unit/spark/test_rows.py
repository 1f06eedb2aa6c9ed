"""Rows to messages and messages to columns, without Spark."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from headwater.client.columns.texts import join, text_column
from headwater.errors import InvalidEventError, MessageError, SchemaError
from headwater.log.content import ContentKind
from headwater.spark.options import NonFinite
from headwater.spark.rows import MessageEncoder, checked_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def strings(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


@given(st.lists(JSON, max_size=20), st.sampled_from([None, 2]), st.booleans())
def test_splitting_reverses_joining(values: list[Any], indent: int | None, ascii_only: bool) -> None:
    texts = [
        json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for value in values
    ]
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError:
        return  # a lone surrogate is not valid text
    body = b"[" + b",".join(texts) + b"]"
    assert text_column(body).to_pylist() == [text.decode() for text in texts]
    assert checked_json(pa.array(texts, pa.binary())).to_pylist() == texts


@given(st.lists(st.binary(max_size=6) | JSON.map(lambda value: json.dumps(value).encode()), min_size=1, max_size=6))
def test_each_value_must_be_one_json_text(texts: list[bytes]) -> None:
    def is_json(text: bytes) -> bool:
        try:
            json.loads(text.decode(), parse_constant=lambda word: math.nan / 0)
        except (ValueError, RecursionError, ZeroDivisionError):
            return False
        return True

    try:
        column = checked_json(pa.array(texts, pa.binary())).to_pylist()
    except SchemaError:
        assert not all(map(is_json, texts)) or any(b"\\ud" in text.lower() for text in texts)
        return
    assert [json.loads(text) for text in column] == [json.loads(text) for text in texts]


def test_invalid_utf_8_has_its_own_error() -> None:
    with pytest.raises(MessageError, match="not UTF-8"):
        text_column(b'[1,"\xff"]')


def test_slices_are_joined() -> None:
    messages = pa.array([b"1", b"22", b"333", b"4"], pa.binary())
    assert join(messages[1:3], b",") == b"22,333"
    assert join(messages.filter(pa.array([True, False, False, True])), b"") == b"14"
    assert join(messages[:0], b",") == b""


def test_values_of_every_type_become_json() -> None:
    kinds = [
        ("long", LongType(), 2**60),
        ("double", DoubleType(), 1.5),
        ("decimal", DecimalType(10, 2), Decimal("1.50")),
        ("when", TimestampType(), datetime(2026, 1, 1, tzinfo=UTC)),
        ("day", DateType(), date(2026, 1, 1)),
        ("tags", ArrayType(StringType()), ["a", None]),
        ("map", MapType(StringType(), IntegerType()), [("a", 1), ("b", None)]),
        ("nothing", StringType(), None),
    ]
    inner = StructType([StructField(name, kind) for name, kind, _ in kinds])
    schema = StructType([*strings("type", "key", "operation").fields, StructField("value", inner)])
    value = {name: cell for name, _, cell in kinds}
    rows = [{"type": "t", "key": "k", "operation": "insert", "value": value}]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    [(target, messages)] = MessageEncoder(schema, "a", ContentKind.JSON, state=True).encode(batch)
    assert target == "a"
    assert json.loads(messages[0].as_py())["value"] == {
        "long": 2**60,
        "double": 1.5,
        "decimal": "1.50",
        "when": "2026-01-01T00:00:00Z",
        "day": "2026-01-01",
        "tags": ["a", None],
        "map": {"a": 1, "b": None},
        "nothing": None,
    }


def encoded(kind: DataType, cells: list[Any], policy: NonFinite = NonFinite.FAIL) -> list[Any]:
    """The values of state events with cells of a type."""
    schema = StructType([*strings("type", "key", "operation").fields, StructField("value", kind)])
    rows = [{"type": "t", "key": "k", "operation": "insert", "value": cell} for cell in cells]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    encoder = MessageEncoder(schema, "a", ContentKind.JSON, state=True, non_finite=policy)
    return [json.loads(text)["value"] for _, texts in encoder.encode(batch) for text in texts.to_pylist()]


def test_json_in_a_binary_column_is_json() -> None:
    assert encoded(BinaryType(), [b'{"a": "\xc3\xa9"}', b"1"]) == [{"a": "é"}, 1]
    for wrong in (b"\xff", b"plain", b'"\xff"'):
        with pytest.raises(SchemaError, match="a value is not one JSON text"):
            encoded(BinaryType(), [wrong])


def test_a_variant_is_written_as_its_json() -> None:
    text = '{"a":[1,2.5,"x"],"b":null}'
    variant = VariantVal.parseJson(text)
    assert encoded(VariantType(), [{"value": variant.value, "metadata": variant.metadata}]) == [json.loads(text)]
    for inside in (ArrayType(VariantType()), StructType([StructField("v", VariantType())])):
        with pytest.raises(SchemaError, match="the column value contains a VARIANT"):
            encoded(inside, [])
    assert encoded(StructType([StructField("variant", IntegerType())]), [{"variant": 1}]) == [{"variant": 1}]


def test_numbers_that_json_does_not_have() -> None:
    kind = StructType([StructField("a", ArrayType(DoubleType())), StructField("m", MapType(StringType(), FloatType()))])
    cell = {"a": [math.nan, math.inf, 1.5], "m": [("x", -math.inf)]}
    assert encoded(kind, [cell], NonFinite.NULL) == [{"a": [None, None, 1.5], "m": {"x": None}}]
    assert encoded(kind, [cell], NonFinite.TEXT) == [{"a": ["NaN", "Infinity", 1.5], "m": {"x": "-Infinity"}}]
    with pytest.raises(SchemaError, match="the number nan, which JSON does not have; set nonFiniteNumbers"):
        encoded(kind, [cell])
    assert encoded(DoubleType(), [1.5]) == [1.5]


def test_rows_go_to_their_targets_in_order() -> None:
    schema = strings("stream", "value")
    batch = pa.RecordBatch.from_pydict({"stream": ["b", "/a/", "b", "a"], "value": ["1", "2", "3", "4"]})
    groups = [
        (target, part.to_pylist())
        for target, part in MessageEncoder(schema, None, ContentKind.JSON, state=False).encode(batch)
    ]
    by_target: dict[str, list[bytes]] = {}
    for target, messages in groups:
        by_target.setdefault(target, []).extend(messages)
    assert by_target["b"] == [b"1", b"3"]
    assert sorted(by_target["a"]) == [b"2", b"4"]


@pytest.mark.parametrize("target", ["", "/", "a//b", "../b", "__ds/x", "_spark/x"])
def test_invalid_targets(target: str) -> None:
    schema = strings("stream", "value")
    batch = pa.RecordBatch.from_pydict({"stream": ["fine", target], "value": ["1", "2"]})
    with pytest.raises(SchemaError, match="stream"):
        list(MessageEncoder(schema, None, ContentKind.JSON, state=False).encode(batch))


def test_invalid_events() -> None:
    schema = strings("type", "key", "operation", "value", "control")
    encoder = MessageEncoder(schema, "a", ContentKind.JSON, state=True)
    for row in (
        ["t", "k", "put", "1", None],
        ["t", None, "insert", "1", None],
        ["t", "k", "insert", None, None],
        [None, None, None, None, "stop"],
        ["t", "k", "insert", "1", "reset"],
    ):
        batch = pa.RecordBatch.from_arrays([pa.array([cell], pa.string()) for cell in row], names=schema.names)
        with pytest.raises(InvalidEventError):
            list(encoder.encode(batch))
