"""What a state is made of: collections, each an entity type with a schema and a primary key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET

from headwater.client.codecs import encode_json
from headwater.protocol.state.vocabulary import Operation
from headwater.state.events import ChangeEvent, ChangeHeaders
from headwater.state.schemas import Schema, fingerprint_of, schema_of

T = TypeVar("T")


class Collection(Generic[T]):
    """One entity type: how its values are checked and keyed, and the events that change them."""

    @overload
    def __init__(self, type: str, schema: type[T], *, key: str = ..., indexes: Sequence[str] = ...) -> None: ...

    @overload
    def __init__(
        self, type: str, schema: Callable[[Any], T], *, key: str = ..., indexes: Sequence[str] = ...
    ) -> None: ...

    @overload
    def __init__(self, type: str, schema: Schema[T], *, key: str = ..., indexes: Sequence[str] = ...) -> None: ...

    @overload
    def __init__(
        self: Collection[Any], type: str, schema: Mapping[str, Any], *, key: str = ..., indexes: Sequence[str] = ...
    ) -> None: ...

    def __init__(self, type: str, schema: Any, *, key: str = "id", indexes: Sequence[str] = ()) -> None:  # noqa: A002
        if not type:
            raise ValueError("an entity type cannot be empty")
        if not key:
            raise ValueError("a primary key cannot be empty")
        self.type = type
        self.key = key
        self.indexes = tuple(indexes)
        self.schema: Schema[T] = schema_of(schema)

    def insert(
        self, value: Any, *, key: str | None = None, txid: str | None = None, timestamp: str | None = None
    ) -> ChangeEvent[Any]:
        return self._change("insert", value, key, txid, timestamp)

    def update(
        self,
        value: Any,
        *,
        key: str | None = None,
        old_value: Any = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent[Any]:
        return self._change("update", value, key, txid, timestamp, old_value)

    def upsert(
        self, value: Any, *, key: str | None = None, txid: str | None = None, timestamp: str | None = None
    ) -> ChangeEvent[Any]:
        return self._change("upsert", value, key, txid, timestamp)

    def delete(
        self,
        key: str | int | None = None,
        *,
        old_value: Any = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent[Any]:
        """Delete by key, or by the value that is to go."""
        if old_value is not UNSET:
            self.checked(old_value, "delete, old value")
        found = self.key_of(old_value) if key is None and old_value is not UNSET else _key_text(key)
        if not found:
            raise ValueError(f"{self.type} delete: give a key or an old_value with a non-empty {self.key!r}")
        return ChangeEvent(type=self.type, key=found, old_value=old_value, headers=_headers("delete", txid, timestamp))

    def checked(self, value: Any, what: str = "value") -> T:
        """The value as the schema has it; ValueError if it does not fit."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise ValueError(f"{self.type} {what}: give the value itself, not its JSON text")
        try:
            return self.schema.decode(encode_json(value))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.type} {what}: {error}") from error

    def key_of(self, value: Any) -> str | None:
        """The primary key in a value as text; None if it has none."""
        found = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        return _key_text(found)

    def _change(
        self,
        operation: Operation,
        value: Any,
        key: str | None,
        txid: str | None,
        timestamp: str | None,
        old_value: Any = UNSET,
    ) -> ChangeEvent[Any]:
        self.checked(value, operation)
        if old_value is not UNSET:
            self.checked(old_value, f"{operation}, old value")
        found = _key_text(key) if key is not None else self.key_of(value)
        if not found:
            raise ValueError(f"{self.type} {operation}: give a key or a value with a non-empty {self.key!r}")
        headers = _headers(operation, txid, timestamp)
        return ChangeEvent(type=self.type, key=found, value=value, old_value=old_value, headers=headers)

    @property
    def fingerprint(self) -> str:
        """What tells this collection from another that would make another state of the same stream."""
        text = f"{self.type}\n{fingerprint_of(self.schema)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Collection({self.type!r}, key={self.key!r})"


def _key_text(key: Any) -> str | None:
    """A key as text: numbers are spelled out, nothing else is a key."""
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        return None
    return str(key) or None


def _headers(operation: Operation, txid: str | None, timestamp: str | None) -> ChangeHeaders:
    return ChangeHeaders(
        operation=operation,
        txid=UNSET if txid is None else txid,
        timestamp=UNSET if timestamp is None else timestamp,
    )


class _Spelled(msgspec.Struct, forbid_unknown_fields=True):
    """A collection spelled as a dictionary."""

    type: str
    schema: Any
    primary_key: str = "id"
    indexes: list[str] = []


class StateDefinition(Mapping[str, Collection[Any]]):
    """Collections by name; also as attributes."""

    def __init__(self, collections: Mapping[str, Collection[Any]]) -> None:
        self._collections = dict(collections)
        self.by_type = {collection.type: name for name, collection in self._collections.items()}

    def __getitem__(self, name: str) -> Collection[Any]:
        return self._collections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._collections)

    def __len__(self) -> int:
        return len(self._collections)

    def __getattr__(self, name: str) -> Collection[Any]:
        try:
            return self.__dict__["_collections"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no collection is called {name!r}") from None


def define_state(collections: Mapping[str, Collection[Any] | Mapping[str, Any]]) -> StateDefinition:
    """A state of named collections: `{"users": Collection("user", User)}`, or spelled as dictionaries.

    A name is an attribute of a database, so it is an identifier; at most one collection has a given entity type.
    """
    made: dict[str, Collection[Any]] = {}
    types: dict[str, str] = {}
    for name, given in collections.items():
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"a collection's name must be an identifier without a leading underscore, got {name!r}")
        collection = given if isinstance(given, Collection) else _spelled(name, given)
        if collection.type in types:
            raise ValueError(f"{name!r} and {types[collection.type]!r} have the same entity type {collection.type!r}")
        types[collection.type] = name
        made[name] = collection
    return StateDefinition(made)


def _spelled(name: str, given: Mapping[str, Any]) -> Collection[Any]:
    try:
        spelled = _Spelled(**given)
    except TypeError as error:
        raise ValueError(f"collection {name!r}: {error}") from None
    return Collection(spelled.type, spelled.schema, key=spelled.primary_key, indexes=spelled.indexes)
