"""The rows of a collection as an Arrow table, with the types of its schema.

Types come from a Struct, a dataclass, a TypedDict, a pydantic model, or any type that these consist of. What Arrow has
no type for (values of any type, unions, decimals) is a column of JSON text. A collection with another schema (a
function, a JSON Schema, `dict`) has two columns: `key`, and `value` as JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from operator import attrgetter
from typing import Any

import msgspec
import msgspec.inspect as kinds
import pyarrow as pa

from headwater.errors import SchemaError
from headwater.state.definitions import Collection

_KEPT = (bytes, datetime, date, time, timedelta)  # what Arrow takes as it is
_PLAIN: list[tuple[type[kinds.Type], pa.DataType]] = [
    (kinds.StrType, pa.string()),
    (kinds.IntType, pa.int64()),
    (kinds.FloatType, pa.float64()),
    (kinds.BoolType, pa.bool_()),
    (kinds.BytesType, pa.binary()),
    (kinds.DateType, pa.date32()),
    (kinds.TimeType, pa.time64("us")),
    (kinds.TimeDeltaType, pa.duration("us")),
    (kinds.UUIDType, pa.string()),
]
_encode = msgspec.json.Encoder().encode


def arrow_table(
    collection: Collection[Any], pairs: Iterable[tuple[str, Any]], columns: Sequence[str] | None
) -> pa.Table:
    """A table of keys and values. The key is the column `key`, or `_key` if values have a field of that name."""
    schema, has_fields = _schema_of(collection)
    known = schema.names
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}; those of {collection.type!r} are {', '.join(known)}")
    kind = _inspected(collection.value_type)
    plain = _whole(kind, is_row=True) if has_fields and _leaves_out(kind) else _builtins
    keys, values = [], []
    for key, value in pairs:
        keys.append(key)
        values.append(plain(value))
    arrays = [_array(schema.field(0), keys)]
    for field in list(schema)[1:]:
        cells = [value.get(field.name) for value in values] if has_fields else values
        arrays.append(_array(field, cells))
    table = pa.Table.from_arrays(arrays, schema=schema)
    return table if columns is None else table.select(list(columns))


def _schema_of(collection: Collection[Any]) -> tuple[pa.Schema, bool]:
    """The columns of a collection, and whether they are the fields of its values."""
    fields = _fields_of(collection.value_type)
    if fields is None:
        return pa.schema([("key", pa.string()), pa.field("value", pa.string(), metadata=_JSON)]), False
    key = "_key" if "key" in [field.name for field in fields] else "key"
    return pa.schema([(key, pa.string()), *fields]), True


_JSON = {b"headwater": b"json"}  # marks a column of JSON text


def _fields_of(kind: Any) -> list[pa.Field] | None:
    if hasattr(kind, "__pydantic_validator__"):
        named = {model.serialization_alias or name: model.annotation for name, model in kind.model_fields.items()}
        return [_field(name, _inspected(annotation)) for name, annotation in named.items()]
    info = _inspected(kind)
    if isinstance(info, (kinds.StructType, kinds.DataclassType, kinds.TypedDictType)):
        return [_field(field.encode_name, field.type, info.cls) for field in info.fields]
    return None


def _inspected(kind: Any) -> kinds.Type:
    try:
        return kinds.type_info(kind)
    except TypeError:
        return kinds.AnyType()


def _field(name: str, kind: kinds.Type, *outer: type) -> pa.Field:
    arrow = _type(kind, outer)
    return pa.field(name, pa.string(), metadata=_JSON) if arrow is None else pa.field(name, arrow)


def _type(kind: kinds.Type, outer: tuple[type, ...] = ()) -> pa.DataType | None:
    """The Arrow type; None if there is none, so that the values are JSON text. `outer` are the types that it is within:
    Arrow has no types that contain themselves."""
    for inspected, arrow in _PLAIN:
        if isinstance(kind, inspected):
            return arrow
    if isinstance(kind, kinds.UnionType):
        others = [one for one in kind.types if not isinstance(one, kinds.NoneType)]
        return _type(others[0], outer) if len(others) == 1 else None
    if isinstance(kind, kinds.DateTimeType):
        return pa.timestamp("us") if kind.tz is False else pa.timestamp("us", "UTC")
    if isinstance(kind, (kinds.LiteralType, kinds.EnumType)):
        values = kind.values if isinstance(kind, kinds.LiteralType) else [member.value for member in kind.cls]
        types = {type(value) for value in values}
        return {str: pa.string(), int: pa.int64()}.get(types.pop()) if len(types) == 1 else None
    if isinstance(kind, kinds.CollectionType):
        inner = _type(kind.item_type, outer)
        return None if inner is None else pa.list_(inner)
    if isinstance(kind, (kinds.StructType, kinds.DataclassType, kinds.TypedDictType)):
        if kind.cls in outer:
            return None
        fields = [(field.encode_name, _type(field.type, (*outer, kind.cls))) for field in kind.fields]
        return pa.struct(fields) if fields and all(arrow is not None for _, arrow in fields) else None
    return None


def _builtins(value: Any) -> Any:
    if hasattr(value, "__pydantic_serializer__"):
        return value.model_dump(by_alias=True)
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def _leaves_out(kind: kinds.Type, outer: tuple[type, ...] = ()) -> bool:
    """Whether the JSON of a type lacks names or values of fields, because of `omit_defaults` or `array_like`."""
    if isinstance(kind, kinds.StructType):
        config = kind.cls.__struct_config__
        if config.omit_defaults or config.array_like:
            return True
    if isinstance(kind, (kinds.StructType, kinds.DataclassType, kinds.TypedDictType)):
        return kind.cls not in outer and any(_leaves_out(field.type, (*outer, kind.cls)) for field in kind.fields)
    if isinstance(kind, kinds.CollectionType):
        return _leaves_out(kind.item_type, outer)
    return isinstance(kind, kinds.UnionType) and any(_leaves_out(one, outer) for one in kind.types)


def _whole(kind: kinds.Type, *, is_row: bool = False) -> Callable[[Any], Any]:
    """What makes values of a type, with all their fields, from objects. What becomes JSON text is as in its JSON."""
    if isinstance(kind, kinds.UnionType):
        kind = next((one for one in kind.types if not isinstance(one, kinds.NoneType)), kind)
    if is_row or _type(kind) is not None:
        if isinstance(kind, (kinds.StructType, kinds.DataclassType)):
            members = [(field.encode_name, attrgetter(field.name), _whole(field.type)) for field in kind.fields]
            return lambda value: {name: _present(member(value), whole) for name, member, whole in members}
        if isinstance(kind, kinds.TypedDictType):
            wholes = {field.name: _whole(field.type) for field in kind.fields}
            return lambda value: {name: _present(value[name], whole) for name, whole in wholes.items() if name in value}
        if isinstance(kind, kinds.CollectionType):
            item = _whole(kind.item_type)
            return lambda value: [_present(one, item) for one in value]
    return _builtins


def _present(value: Any, whole: Callable[[Any], Any]) -> Any:
    return None if value is None or value is msgspec.UNSET else whole(value)


def _array(field: pa.Field, cells: list[Any]) -> pa.Array:
    if field.metadata == _JSON:
        cells = [None if cell is None else _encode(cell).decode() for cell in cells]
    else:
        convert = _CONVERTED.get(field.type)
        cells = cells if convert is None else [None if cell is None else convert(cell) for cell in cells]
    try:
        return pa.array(cells, field.type)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise SchemaError(f"the column {field.name!r} cannot be {field.type}: {error}") from None


_CONVERTED: Mapping[pa.DataType, Callable[[Any], Any]] = {pa.string(): str}  # UUIDs of pydantic
