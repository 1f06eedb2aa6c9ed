"""Schemas: what a value must be, said in whatever way an application says it already.

A schema is anything with `decode(text) -> value` that raises ValueError (or a subclass) for JSON that does not fit.
`schema_of` makes one of a msgspec Struct, a dataclass, a TypedDict or any other type msgspec knows; of a pydantic
model; of a JSON Schema; or of a function that takes the plain value and returns the one to keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Schema(Protocol[T_co]):
    def decode(self, text: bytes | msgspec.Raw, /) -> T_co:
        """The value in a JSON text; ValueError if it does not fit."""


def schema_of(spec: Any) -> Schema[Any]:
    if isinstance(spec, Schema) and not isinstance(spec, type):
        return spec
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


def _is_type(spec: Any) -> bool:
    """Whether it is something like list[int] or a union, which Python can call but not sensibly."""
    return getattr(spec, "__module__", "") in ("typing", "types") or hasattr(spec, "__origin__")


class _PydanticSchema:
    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter  # only who has a model has pydantic

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        return self._adapter.validate_json(bytes(text))


class _FunctionSchema:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def decode(self, text: bytes | msgspec.Raw, /) -> Any:
        try:
            return self._function(msgspec.json.decode(text))
        except (TypeError, KeyError, AttributeError) as error:  # how such functions find that something is missing
            raise ValueError(f"{type(error).__name__}: {error}") from error


class _JsonSchema:
    def __init__(self, schema: Mapping[str, Any]) -> None:
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
