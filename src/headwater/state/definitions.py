"""Definitions of collections: an entity type with a schema and a primary key."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET

from headwater.client.codecs import encode_json
from headwater.protocol.state.events import ChangeEvent, ChangeHeaders, Operation, change_headers
from headwater.state.schemas import Schema, fingerprint_of, json_name, schema_of, unknown_fields, value_type_of

if TYPE_CHECKING:
    from headwater.state.tables import StateTable

T = TypeVar("T")

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER = re.compile(r"-?[1-9][0-9]{0,18}|0")


class StateHolder:
    """A class of databases. Attributes of it that are collections stand for the tables in an instance."""

    def table(self, collection: Collection[T]) -> StateTable[T]:
        """Return a collection by its definition. Unlike `db.name`, it is typed for type checkers."""
        raise NotImplementedError

    @classmethod
    def declared(cls) -> dict[str, Collection[Any]]:
        """The collections that are attributes of the class, by name."""
        attributes = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        return {name: value for name, value in attributes.items() if isinstance(value, Collection)}


class Collection(Generic[T]):
    """The definition of a collection: its entity type, schema and primary key. It also makes events.

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
        self.check_fields(self.indexes)

    @property
    def value_type(self) -> Any:
        """The type of the values, if the schema is one; Any otherwise."""
        return value_type_of(self.schema)

    @overload
    def __get__(self, instance: None, owner: Any) -> Collection[T]: ...

    @overload
    def __get__(self, instance: StateHolder, owner: Any) -> StateTable[T]: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> Collection[T]: ...

    def __get__(self, instance: object, owner: Any) -> Any:
        """The table, if the collection is an attribute of the class of a database."""
        return instance.table(self) if isinstance(instance, StateHolder) else self

    def check_fields(self, names: Iterable[str]) -> None:
        """Check the names of fields, if the schema is a Struct or a dataclass. Raises ValueError."""
        unknown = unknown_fields(self.schema, names)
        if unknown:
            raise ValueError(f"a value of type {self.type!r} has no field {unknown[0]!r}")

    def insert(
        self,
        value: Any,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent[Any]:
        """Return an event that adds an entity. The key is the value's primary key unless it is given."""
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
        """Return an event that changes an entity. `old_value` is informative and is never applied."""
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
        """Return an event that adds or changes an entity."""
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
        """Return an event that deletes an entity, given its key or its old value."""
        key_text = self.key_of(old_value) if key is None and old_value is not UNSET else _key_text(key)
        if old_value is not UNSET:
            self.checked(old_value, "delete, old value", key_text)
        if not key_text:
            raise ValueError(f"{self.type} delete: give a key or an old_value with a non-empty {self.key!r}")
        event_headers = _headers("delete", txid, timestamp, headers)
        return ChangeEvent(type=self.type, key=key_text, old_value=old_value, headers=event_headers)

    def row(self, key: str, text: bytes | msgspec.Raw) -> T:
        """Decode a value with the schema, with the event's key as its primary key.

        If the object has no primary key or another one, it is set to the event's key. If the schema does not allow
        that key, for example if it needs an integer, the value stays as it was written.
        """
        try:
            row = self._decode(text)
        except Exception as error:  # a schema may raise anything
            with contextlib.suppress(Exception):
                return self._with_key(key, text)
            raise error from None
        own_key = row.get(self.key) if isinstance(row, dict) else getattr(row, self.key, key)
        if own_key == key:
            return row
        if str(own_key) == key and not isinstance(own_key, bool):
            return row
        if self._takes_anything and isinstance(row, dict):
            row[self.key] = key
            return row
        try:
            return self._with_key(key, text)
        except Exception:  # noqa: BLE001  # the schema does not allow the key
            return row

    def _with_key(self, key: str, text: bytes | msgspec.Raw) -> T:
        fields: dict[str, Any] = _object.decode(text)
        number = [int(key)] if _NUMBER.fullmatch(key) else []
        for spelled in (key, *number):
            fields[self._key_in_json] = spelled
            try:
                return self.schema.decode(msgspec.json.encode(fields))
            except Exception as error:  # noqa: BLE001  # the other form of the key may match
                refused = error
        raise refused

    def checked(self, value: Any, what: str = "value", key: str | None = None) -> T:
        """Decode a value with the schema, with its key if known. ValueError if it does not match."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise ValueError(f"{self.type} {what}: give the value itself, not its JSON text")
        try:
            text = encode_json(value)
            return self.schema.decode(text) if key is None else self.row(key, text)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.type} {what}: {error}") from error

    def key_of(self, value: Any) -> str | None:
        """The primary key of a value as text; None if it has none."""
        key = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        return _key_text(key)

    def _change(
        self, operation: Operation, value: Any, key: str | None, headers: ChangeHeaders, old_value: Any = UNSET
    ) -> ChangeEvent[Any]:
        key_text = _key_text(key) if key is not None else self.key_of(value)
        self.checked(value, operation, key_text)
        if old_value is not UNSET:
            self.checked(old_value, f"{operation}, old value", key_text)
        if not key_text:
            raise ValueError(f"{self.type} {operation}: give a key or a value with a non-empty {self.key!r}")
        return ChangeEvent(type=self.type, key=key_text, value=value, old_value=old_value, headers=headers)

    @property
    def fingerprint(self) -> str:
        """A text that differs between collections that would get different states from the same stream."""
        text = f"{self.type}\n{self.key}\n{fingerprint_of(self.schema)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Collection({self.type!r}, key={self.key!r})"


def _key_text(key: Any) -> str | None:
    """A key as text. Keys are text or numbers."""
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
    """The definition of a collection as a dictionary."""

    type: str
    schema: Any
    primary_key: str = "id"
    indexes: list[str] = []


class StateDefinition(Mapping[str, Collection[Any]]):
    """Collections by name, also available as attributes."""

    def __init__(self, collections: Mapping[str, Collection[Any]]) -> None:
        self._collections = dict(collections)
        self.by_type = {collection.type: name for name, collection in self._collections.items()}

    def __getitem__(self, name: str) -> Collection[Any]:
        return self._collections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._collections)

    def __len__(self) -> int:
        return len(self._collections)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Collection[Any]:
            try:
                return self.__dict__["_collections"][name]
            except KeyError:
                raise AttributeError(f"no collection is called {name!r}") from None


def define_state(collections: Mapping[str, Collection[Any] | Mapping[str, Any]]) -> StateDefinition:
    """Define a state of named collections: `{"users": Collection("user", User)}`, or with dictionaries.

    A name becomes an attribute of the database, so it must be an identifier. Entity types must be unique.

    ```python
    shop = define_state({
        "users": Collection("user", dict),
        "orders": {"type": "order", "schema": dict, "primary_key": "no"},
    })
    assert shop.orders.key == "no"
    ```
    """
    if not isinstance(collections, Mapping):
        raise TypeError(f"expected collections by name: {{'users': Collection('user', User)}}; got {collections!r:.80}")
    definitions: dict[str, Collection[Any]] = {}
    types: dict[str, str] = {}
    for name, spec in collections.items():
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"a collection's name must be an identifier without a leading underscore, got {name!r}")
        collection = spec if isinstance(spec, Collection) else _spelled(name, spec)
        if collection.type in types:
            raise ValueError(f"{name!r} and {types[collection.type]!r} have the same entity type {collection.type!r}")
        types[collection.type] = name
        definitions[name] = collection
    return StateDefinition(definitions)


def _spelled(name: str, options: Mapping[str, Any]) -> Collection[Any]:
    try:
        spelled = _Spelled(**options)
    except TypeError as error:
        raise ValueError(f"collection {name!r}: {error}") from None
    return Collection(spelled.type, spelled.schema, key=spelled.primary_key, indexes=spelled.indexes)
