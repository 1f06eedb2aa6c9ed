"""Schemas: what a value must be, said in whatever way an application says it already.

A schema is anything with `decode(text) -> value` that raises ValueError (or a subclass) for JSON that does not fit.
`schema_of` makes one of a msgspec Struct, a dataclass, a TypedDict or any other type msgspec knows; of a pydantic
model; of a JSON Schema; or of a function that takes the plain value and returns the one to keep.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Schema(Protocol[T_co]):
    def decode(self, text: bytes | msgspec.Raw, /) -> T_co:
        """The value in a JSON text; ValueError if it does not fit."""


def schema_of(spec: Any) -> Schema[Any]:
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
        raise TypeError(f"{spec!r} is no schema: {error}") from None


def fingerprint_of(schema: Schema[Any]) -> str:
    """What tells a schema from another, also after a restart; as well as that can be known."""
    if isinstance(schema, msgspec.json.Decoder):
        try:
            return repr(msgspec.json.schema(schema.type))
        except TypeError:
            return repr(schema.type)
    return schema.fingerprint if isinstance(schema, _OwnSchema) else repr(type(schema))


def _is_type(spec: Any) -> bool:
    """Whether it is something like list[int] or a union, which Python can call but not sensibly."""
    named = getattr(spec, "__module__", "") in ("typing", "types")
    return named or hasattr(spec, "__origin__") or hasattr(spec, "__supertype__")


class _OwnSchema(ABC):
    """A schema that was made here, of a specification that tells it from others."""

    fingerprint: str

    @abstractmethod
    def decode(self, text: bytes | msgspec.Raw, /) -> Any: ...


class _ForeignSchema(_OwnSchema):
    """Somebody's own, which is promised bytes."""

    def __init__(self, schema: Schema[Any]) -> None:
        self._schema = schema
        self.fingerprint = f"{type(schema).__module__}.{type(schema).__qualname__}"

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        return self._schema.decode(bytes(text))


class _PydanticSchema(_OwnSchema):
    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter  # only who has a model has pydantic

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)
        self.fingerprint = repr(self._adapter.json_schema())

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        return self._adapter.validate_json(bytes(text))


class _FunctionSchema(_OwnSchema):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        code = getattr(function, "__code__", None)
        body = "" if code is None else f"{code.co_code.hex()} {code.co_consts!r} {code.co_names!r}"
        self.fingerprint = f"{getattr(function, '__qualname__', type(function).__qualname__)} {body}"

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        try:
            return self._function(msgspec.json.decode(text))
        except Exception as error:  # whatever it raises means that it does not take the value
            raise ValueError(f"{type(error).__name__}: {error}") from error


class _JsonSchema(_OwnSchema):
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.fingerprint = repr(schema)
        try:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import validator_for
        except ImportError:
            raise ImportError(
                "a JSON Schema needs the package jsonschema: pip install 'headwater[jsonschema]'"
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
