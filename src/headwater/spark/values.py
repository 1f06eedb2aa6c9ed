"""Converts JSON values by a schema to Arrow columns, and cells to JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Required, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantVal,
)

from headwater.errors import SchemaError
from headwater.spark.options import NonFinite

_PLAIN: list[tuple[type[DataType], Any]] = [
    (StringType, str),
    (BooleanType, bool),
    (IntegralType, int),
    (DoubleType, float),
    (FloatType, float),
    (DecimalType, Decimal),
    (TimestampType, datetime),
    (TimestampNTZType, datetime),
    (DateType, date),
    (BinaryType, bytes),
]


def _python_type(kind: DataType) -> Any:
    if isinstance(kind, StructType):
        kinds = {field.name: (_python_type(field.dataType), field.nullable) for field in kind.fields}
        fields = {name: one | None if nullable else Required[one] for name, (one, nullable) in kinds.items()}
        return TypedDict("Value", fields, total=False)  # type: ignore[operator]
    if isinstance(kind, ArrayType):
        element = _python_type(kind.elementType)
        return list[element | None if kind.containsNull else element]  # type: ignore[misc]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        value = _python_type(kind.valueType)
        return dict[str, value | None if kind.valueContainsNull else value]  # type: ignore[misc]
    for spark, python in _PLAIN:
        if isinstance(kind, spark):
            return python
    raise SchemaError(f"{kind.simpleString()} cannot be read from JSON")


class ValueDecoder:
    """Decodes JSON objects to a column. Fields that are not in the schema are dropped, missing ones are null."""

    def __init__(self, schema: StructType, kind: pa.DataType) -> None:
        self._one = msgspec.json.Decoder(_python_type(schema) | None)
        self._many = msgspec.json.Decoder(list[_python_type(schema) | None])  # type: ignore[misc]
        self._kind = kind
        self._has_maps = "map<" in schema.simpleString()

    def column(self, texts: Sequence[bytes | None], reasons: list[str | None]) -> pa.Array:
        """A column of values. Values that do not match are null, with the reason in `reasons`."""
        try:
            values = self._many.decode(b"[" + b",".join(b"null" if text is None else text for text in texts) + b"]")
            return self._array(values)
        except (msgspec.MsgspecError, pa.ArrowException, OverflowError):
            return self._array([self._value(number, text, reasons) for number, text in enumerate(texts)])

    def _value(self, number: int, text: bytes | None, reasons: list[str | None]) -> Any:
        if text is None:
            return None
        try:
            value = self._one.decode(text)
            self._array([value])
        except (msgspec.MsgspecError, pa.ArrowException, OverflowError) as error:
            reasons[number] = reasons[number] or f"the value does not fit the schema: {error}"
            return None
        return value

    def _array(self, values: list[Any]) -> pa.Array:
        if self._has_maps:
            values = [_with_pairs(value, self._kind) for value in values]
        return pa.array(values, self._kind)


class TypedDecoder:
    """Decodes JSON objects by their types to a struct with a field for each. Values of other types are not decoded."""

    def __init__(self, schema: StructType, kind: pa.StructType) -> None:
        if not all(isinstance(field.dataType, StructType) for field in schema.fields):
            raise SchemaError("with a valueSchema for each type, the column value must be a struct of structs")
        self._kind = kind
        self._decoders = {
            field.name: ValueDecoder(field.dataType, kind.field(field.name).type)
            for field in schema.fields
            if isinstance(field.dataType, StructType)
        }

    def column(
        self, types: Sequence[str | None], texts: Sequence[bytes | None], reasons: list[str | None]
    ) -> pa.StructArray:
        arrays = []
        for name, decoder in self._decoders.items():
            own = [text if kind == name else None for kind, text in zip(types, texts, strict=True)]
            arrays.append(decoder.column(own, reasons))
        nothing = [kind not in self._decoders or text is None for kind, text in zip(types, texts, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind), mask=pa.array(nothing, pa.bool_()))


def _with_pairs(value: Any, kind: pa.DataType) -> Any:
    """Convert maps to lists of pairs, as Arrow needs them."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _with_pairs(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_with_pairs(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_pairs(value.get(field.name), field.type) for field in kind}
    return value


def to_json(value: Any) -> bytes:
    """Encode a cell of a DataFrame as JSON."""
    try:
        return msgspec.json.encode(value)
    except TypeError as error:
        raise SchemaError(f"a value cannot be written as JSON; cast it, or give JSON text: {error}") from None


def variant_json(parts: dict[str, bytes]) -> bytes:
    """Convert a VARIANT, which Arrow represents as two binary parts, to JSON."""
    return VariantVal(parts["value"], parts["metadata"]).toJson().encode()


def holds(kind: DataType, wanted: tuple[type[DataType], ...]) -> bool:
    """Whether a type is one of these, or contains one."""
    if isinstance(kind, StructType):
        return any(holds(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return holds(kind.elementType, wanted)
    if isinstance(kind, MapType):
        return holds(kind.keyType, wanted) or holds(kind.valueType, wanted)
    return isinstance(kind, wanted)


def with_finite(value: Any, policy: NonFinite) -> Any:
    """Replace NaN and infinities in a cell by text, or raise an error."""
    if isinstance(value, float) and not math.isfinite(value):
        if policy is NonFinite.FAIL:
            raise SchemaError(f"a value has the number {value}, which JSON does not have; set nonFiniteNumbers")
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: with_finite(one, policy) for key, one in value.items()}
    return [with_finite(one, policy) for one in value] if isinstance(value, list) else value
