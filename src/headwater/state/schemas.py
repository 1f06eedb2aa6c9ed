"""Schemas of values, in the forms that applications already use.

A schema is an object with `decode(text) -> value` that raises ValueError (or a subclass) for JSON that does not match.
`schema_of` makes one from a msgspec Struct, a dataclass, a TypedDict or any other type that msgspec supports; from a
pydantic model; from a JSON Schema; or from a function that takes the decoded value and returns the one to keep.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Schema(Protocol[T_co]):
    """What a collection can use as a schema: anything with this method."""

    def decode(self, text: bytes | msgspec.Raw, /) -> T_co:
        """Decode a JSON text; ValueError if it does not match."""


def schema_of(spec: Any) -> Schema[Any]:
    """Make a schema from a type, a pydantic model, a JSON Schema or a function. TypeError for anything else.

    ```python
    assert schema_of(dict[str, int]).decode(b'{"tea": 3}') == {"tea": 3}
    ```
    """
    if isinstance(spec, (msgspec.json.Decoder, _OwnSchema)):
        return spec
    if isinstance(spec, Schema) and not isinstance(spec, type):
        return _ForeignSchema(spec)
    if hasattr(spec, "__pydantic_validator__") and isinstance(spec, type):
        return _PydanticSchema(spec)
    if isinstance(spec, Mapping):
        return _JsonSchema(spec)
    if inspect.isroutine(spec) or (callable(spec) and not isinstance(spec, type) and not _is_type(spec)):
        return _FunctionSchema(spec)
    try:
        return msgspec.json.Decoder(spec)
    except TypeError as error:
        raise TypeError(f"{spec!r} is not a schema: {error}") from None


def fingerprint_of(schema: Schema[Any]) -> str:
    """A text that differs between schemas as far as possible, and is the same in every process."""
    if isinstance(schema, msgspec.json.Decoder):
        try:
            return _stable(_with_ordered_defaults(msgspec.json.schema(schema.type)))
        except TypeError:
            return _ADDRESS.sub("", repr(schema.type))
    return schema.fingerprint if isinstance(schema, _OwnSchema) else repr(type(schema))


def json_name(schema: Schema[Any], field: str) -> str:
    """The name of a field in JSON, which the schema may rename."""
    if isinstance(schema, msgspec.json.Decoder) and isinstance(schema.type, type):
        if issubclass(schema.type, msgspec.Struct):
            names = {known.name: known.encode_name for known in msgspec.structs.fields(schema.type)}
            return names.get(field, field)
    elif isinstance(schema, _PydanticSchema):
        return schema.json_name(field)
    return field


def value_type_of(schema: Schema[Any]) -> Any:
    """The type that a schema decodes to; Any if it is not known."""
    if isinstance(schema, msgspec.json.Decoder):
        return schema.type
    return schema.model if isinstance(schema, _PydanticSchema) else Any


def unknown_fields(schema: Schema[Any], names: Iterable[str]) -> list[str]:
    """Those of the names that no value has as an attribute. Empty if the schema is neither a Struct nor a dataclass."""
    kind = schema.type if isinstance(schema, msgspec.json.Decoder) else None
    if not isinstance(kind, type) or not (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return []
    fields = getattr(kind, "__dataclass_fields__", {})  # those of a Struct are attributes of the class
    return [name for name in names if name not in fields and not hasattr(kind, name)]


def _with_ordered_defaults(schema: Any) -> Any:
    """A JSON Schema in which default values that are sets have the same order in every process."""
    if isinstance(schema, list):
        return [_with_ordered_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: sorted(value, key=_stable)
        if name == "default" and isinstance(value, list)
        else _with_ordered_defaults(value)
        for name, value in schema.items()
    }


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CONSTANTS = (str, bytes, int, float, complex, type(None), type(...))


def _stable(value: Any, inside: tuple[Any, ...] = ()) -> str:
    """A text of a value that is the same in every process: sets sorted, no addresses, functions by their code."""
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if any(value is outer for outer in inside):
        return "itself"
    inside = (*inside, value)
    if isinstance(value, (set, frozenset)):
        return f"set({', '.join(sorted(_stable(each, inside) for each in value))})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_stable(each, inside) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_stable(k, inside)}: {_stable(v, inside)}' for k, v in value.items())}}}"
    if isinstance(value, CodeType):
        return f"code({value.co_code.hex()}, {_stable(value.co_consts, inside)}, {value.co_names!r})"
    if isinstance(value, functools.partial):
        return f"partial({_stable([value.func, value.args, value.keywords], inside)})"
    if isinstance(value, MethodType):
        return f"method({_stable([value.__func__, type(value.__self__)], inside)})"
    if isinstance(value, FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        parts = [value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells]
        return f"function({_stable(parts, inside)})"
    named = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _is_type(spec: Any) -> bool:
    """Whether it is a type such as list[int] or a union, which is callable but not a schema function."""
    named = getattr(spec, "__module__", "") in ("typing", "types")
    return named or hasattr(spec, "__origin__") or hasattr(spec, "__supertype__")


class _OwnSchema(ABC):
    """A schema made by `schema_of`, with its specification."""

    fingerprint: str

    @abstractmethod
    def decode(self, text: bytes | msgspec.Raw, /) -> Any: ...


class _ForeignSchema(_OwnSchema):
    """A schema of the application. Its `decode` gets bytes."""

    def __init__(self, schema: Schema[Any]) -> None:
        self._schema = schema
        self.fingerprint = f"{type(schema).__module__}.{type(schema).__qualname__}"

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        return self._schema.decode(bytes(text))


class _PydanticSchema(_OwnSchema):
    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter  # pydantic is imported only if a model is given, which needs it anyway

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)
        self.fingerprint = _stable(self._adapter.json_schema())
        self.model = model

    def json_name(self, field: str) -> str:
        known = getattr(self.model, "model_fields", {}).get(field)
        alias = None if known is None else known.validation_alias or known.alias
        return alias if isinstance(alias, str) else field

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        return self._adapter.validate_json(bytes(text))


class _FunctionSchema(_OwnSchema):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.fingerprint = _stable(function)

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        try:
            return self._function(msgspec.json.decode(text))
        except Exception as error:  # any exception means that the value does not match
            raise ValueError(f"{type(error).__name__}: {error}") from error


class _JsonSchema(_OwnSchema):
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.fingerprint = _stable(schema)
        try:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import validator_for
        except ImportError:
            raise ImportError(
                "a JSON Schema needs the package jsonschema: pip install '.[jsonschema]' in a checkout of Headwater"
            ) from None
        kind = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise TypeError(f"not a valid JSON Schema: {error.message}") from None
        self._validator = kind(schema)

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        value = msgspec.json.decode(text)
        for error in self._validator.iter_errors(value):
            raise ValueError(f"{error.message} - at `{error.json_path}`")
        return value
