"""What a state is made of: collections, each an entity type with a schema and a primary key."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET

from headwater.client.codecs import encode_json
from headwater.protocol.state.vocabulary import Operation
from headwater.state.events import ChangeEvent, ChangeHeaders, change_headers
from headwater.state.schemas import Schema, fingerprint_of, json_name, schema_of

T = TypeVar("T")

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER = re.compile(r"-?[1-9][0-9]{0,18}|0")


class Collection(Generic[T]):
    """One entity type: how its values are checked and keyed, and the events that change them.

    ```python
    class User(msgspec.Struct):
        id: str
        name: str

    users = Collection("user", User)
    event = users.insert(User("1", "Ann"), txid="tx-1")
    assert (event.type, event.key, event.headers.operation) == ("user", "1", "insert")
    ```
    """

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
        if not (isinstance(type, str) and type):
            raise ValueError(f"an entity type is text and not empty, got {type!r}")
        if not key:
            raise ValueError("a primary key cannot be empty")
        self.type = type
        self.key = key
        self.indexes = tuple(indexes)
        self.schema: Schema[T] = schema_of(schema)
        self._decode = self.schema.decode
        self._key_in_json = json_name(self.schema, key)
        self._takes_anything = isinstance(self.schema, msgspec.json.Decoder) and self.schema.type in (Any, dict)

    def insert(
        self,
        value: Any,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent[Any]:
        """An event that adds an entity; the key is the value's primary key unless it is given."""
        return self._change("insert", value, key, _headers("insert", txid, timestamp, headers))

    def update(
        self,
        value: Any,
        *,
        key: str | None = None,
        old_value: Any = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent[Any]:
        """An event that changes an entity. `old_value` is for people and is never applied."""
        return self._change("update", value, key, _headers("update", txid, timestamp, headers), old_value)

    def upsert(
        self,
        value: Any,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent[Any]:
        """An event that adds an entity or changes it."""
        return self._change("upsert", value, key, _headers("upsert", txid, timestamp, headers))

    def delete(
        self,
        key: str | int | None = None,
        *,
        old_value: Any = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent[Any]:
        """Delete by key, or by the value that is to go."""
        found = self.key_of(old_value) if key is None and old_value is not UNSET else _key_text(key)
        if old_value is not UNSET:
            self.checked(old_value, "delete, old value", found)
        if not found:
            raise ValueError(f"{self.type} delete: give a key or an old_value with a non-empty {self.key!r}")
        made = _headers("delete", txid, timestamp, headers)
        return ChangeEvent(type=self.type, key=found, old_value=old_value, headers=made)

    def row(self, key: str, text: bytes | msgspec.Raw) -> T:
        """The value in a JSON text as the schema has it, with the event's key as its primary key.

        The key is put into an object that has none or another. Where the schema has no room for it, an integer for
        example and a key that is no number, the value is kept as it was written.
        """
        try:
            row = self._decode(text)
        except Exception as error:  # whatever the schema raises
            with contextlib.suppress(Exception):
                return self._with_key(key, text)
            raise error from None
        found = row.get(self.key) if isinstance(row, dict) else getattr(row, self.key, key)
        if found == key:
            return row
        if str(found) == key and not isinstance(found, bool):
            return row
        if self._takes_anything and isinstance(row, dict):
            row[self.key] = key
            return row
        try:
            return self._with_key(key, text)
        except Exception:  # noqa: BLE001  # as above: there is no room for the key
            return row

    def _with_key(self, key: str, text: bytes | msgspec.Raw) -> T:
        fields: dict[str, Any] = _object.decode(text)
        number = [int(key)] if _NUMBER.fullmatch(key) else []
        for spelled in (key, *number):
            fields[self._key_in_json] = spelled
            try:
                return self.schema.decode(msgspec.json.encode(fields))
            except Exception as error:  # noqa: BLE001  # the other spelling may fit
                refused = error
        raise refused

    def checked(self, value: Any, what: str = "value", key: str | None = None) -> T:
        """The value as the schema has it, with its key if that is known; ValueError if it does not fit."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise ValueError(f"{self.type} {what}: give the value itself, not its JSON text")
        try:
            text = encode_json(value)
            return self.schema.decode(text) if key is None else self.row(key, text)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.type} {what}: {error}") from error

    def key_of(self, value: Any) -> str | None:
        """The primary key in a value as text; None if it has none."""
        found = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        return _key_text(found)

    def _change(
        self, operation: Operation, value: Any, key: str | None, headers: ChangeHeaders, old_value: Any = UNSET
    ) -> ChangeEvent[Any]:
        found = _key_text(key) if key is not None else self.key_of(value)
        self.checked(value, operation, found)
        if old_value is not UNSET:
            self.checked(old_value, f"{operation}, old value", found)
        if not found:
            raise ValueError(f"{self.type} {operation}: give a key or a value with a non-empty {self.key!r}")
        return ChangeEvent(type=self.type, key=found, value=value, old_value=old_value, headers=headers)

    @property
    def fingerprint(self) -> str:
        """What tells this collection from another that would make another state of the same stream."""
        text = f"{self.type}\n{self.key}\n{fingerprint_of(self.schema)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Collection({self.type!r}, key={self.key!r})"


def _key_text(key: Any) -> str | None:
    """A key as text: numbers are spelled out, nothing else is a key."""
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        return None
    return str(key) or None


def _headers(
    operation: Operation, txid: str | None, timestamp: str | None, custom: Mapping[str, Any] | None
) -> ChangeHeaders:
    if txid is not None and not (isinstance(txid, str) and txid):
        raise ValueError(f"a txid is text and not empty, got {txid!r}")
    taken = {"operation", "txid", "timestamp", "control"}.intersection(custom or ())
    if taken:
        raise ValueError(f"these headers are not custom ones: {', '.join(sorted(taken))}")
    named = {
        "operation": operation,
        "txid": UNSET if txid is None else txid,
        "timestamp": UNSET if timestamp is None else timestamp,
    }
    return change_headers(named, custom or {})


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

    ```python
    shop = define_state({
        "users": Collection("user", dict),
        "orders": {"type": "order", "schema": dict, "primary_key": "no"},
    })
    assert shop.orders.key == "no"
    ```
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
