"""Converts JSON values by a schema to Arrow columns, and cells to JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Required, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
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
    """Decodes JSON objects to a column. Fields that are not in the schema are dropped, missing ones are null.

    A number fits a field if the field can hold it: 1.0 and 1e2 are integers, and a number too large for FLOAT does not
    become infinite. FLOAT and DOUBLE round, DECIMAL does not.
    """

    def __init__(self, schema: StructType, kind: pa.DataType) -> None:
        self._one = msgspec.json.Decoder(_python_type(schema) | None)
        self._many = msgspec.json.Decoder(list[_python_type(schema) | None])  # type: ignore[misc]
        self._schema = schema
        self._kind = kind
        self._has_maps = holds(schema, (MapType,))
        self._has_integers = holds(schema, (IntegralType,))
        self._has_floats = holds(schema, (FloatType,))

    def column(self, texts: Sequence[bytes | None], reasons: list[str | None]) -> pa.Array:
        """A column of values. Values that do not match are null, with the reason in `reasons`."""
        try:
            values = self._many.decode(b"[" + b",".join(b"null" if text is None else text for text in texts) + b"]")
            return self._array(values)
        except _DOES_NOT_FIT:
            return self._array([self._value(number, text, reasons) for number, text in enumerate(texts)])

    def _value(self, number: int, text: bytes | None, reasons: list[str | None]) -> Any:
        if text is None:
            return None
        try:
            value = self._decoded(text)
            self._array([value])
        except _DOES_NOT_FIT as error:
            reasons[number] = reasons[number] or f"the value does not fit the schema: {error}"
            return None
        return value

    def _decoded(self, text: bytes) -> Any:
        try:
            return self._one.decode(text)
        except msgspec.ValidationError:
            if not self._has_integers:
                raise
            whole = _with_integers(_exact.decode(text), self._schema)
            return self._one.decode(_numbers.encode(whole))

    def _array(self, values: list[Any]) -> pa.Array:
        if self._has_maps:
            values = [_with_pairs(value, self._kind) for value in values]
        column = pa.array(values, self._kind)
        if self._has_floats and (field := _infinite(column, "$")) is not None:
            raise OverflowError(f"Number too large for FLOAT - at `{field}`")
        return column


_DOES_NOT_FIT = (msgspec.MsgspecError, pa.ArrowException, ArithmeticError, RecursionError)
_INTEGER_DIGITS_MAX = 19  # of BIGINT; a number with a large exponent would need memory in proportion to it
_exact = msgspec.json.Decoder(float_hook=Decimal)
_numbers = msgspec.json.Encoder(decimal_format="number")


def _with_integers(value: Any, kind: DataType) -> Any:
    """Write numbers such as 1.0 and 1e2 as integers where the schema has integers."""
    if isinstance(kind, StructType) and isinstance(value, dict):
        kinds = {field.name: field.dataType for field in kind.fields}
        return {name: _with_integers(one, kinds[name]) for name, one in value.items() if name in kinds}
    if isinstance(kind, ArrayType) and isinstance(value, list):
        return [_with_integers(one, kind.elementType) for one in value]
    if isinstance(kind, MapType) and isinstance(value, dict):
        return {name: _with_integers(one, kind.valueType) for name, one in value.items()}
    if isinstance(kind, IntegralType) and isinstance(value, Decimal):
        if not value:
            return 0
        is_whole = value.adjusted() < _INTEGER_DIGITS_MAX and value == value.to_integral_value()
        return int(value) if is_whole else value
    return value


def _infinite(column: pa.Array, path: str) -> str | None:
    """Where a column has an infinite number, which JSON does not have: a number was too large for its type."""
    kind = column.type
    if pa.types.is_struct(kind):
        inner = ((column.field(number), f"{path}.{field.name}") for number, field in enumerate(kind))
        return next((place for one, name in inner if (place := _infinite(one, name)) is not None), None)
    if pa.types.is_map(kind):
        return _infinite(column.items, f"{path}[...]")
    if pa.types.is_list(kind):
        return _infinite(column.values, f"{path}[...]")
    return path if pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py() else None


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
