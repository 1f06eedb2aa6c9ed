from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, NewType, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from headwater.client import Client
from headwater.state import Collection, StreamDB, define_state, schema_of


class User(msgspec.Struct):
    id: str
    name: str


@dataclass
class DataUser:
    id: int
    name: str


class ModelUser(pydantic.BaseModel):
    id: str
    name: str


class DictUser(TypedDict):
    id: str
    name: str


JSON_USER = {"type": "object", "required": ["id", "name"], "properties": {"name": {"type": "string"}}}


def function_user(value: Any) -> Any:
    if not value["name"].strip():
        raise ValueError("a name is needed")
    return {**value, "name": value["name"].strip()}


SCHEMAS = [User, DataUser, ModelUser, DictUser, JSON_USER, function_user]


@pytest.mark.parametrize("spec", SCHEMAS, ids=lambda spec: getattr(spec, "__name__", "json schema"))
def test_every_kind_of_schema(spec: Any) -> None:
    collection = Collection("user", spec)
    fields = {"id": 7 if spec is DataUser else "7", "name": "Ann"}
    event = collection.insert(fields, txid="t", timestamp="now")
    assert (event.type, event.key, event.value) == ("user", "7", fields)
    assert (event.headers.operation, event.headers.txid, event.headers.timestamp) == ("insert", "t", "now")
    value = schema_of(spec).decode(msgspec.json.encode(fields))
    name = value["name"] if isinstance(value, dict) else value.name
    assert name == "Ann"
    for bad in ({"id": "7", "name": 7}, {"id": "7"}, 7, None):
        for helper in (collection.insert, collection.update, collection.upsert):
            with pytest.raises(ValueError, match="user"):
                helper(bad)
        with pytest.raises(ValueError, match="user"):
            collection.update(fields, old_value=bad)


def test_values_may_be_instances() -> None:
    assert Collection("user", User).insert(User("1", "Ann")).key == "1"
    assert Collection("user", ModelUser).update(ModelUser(id="1", name="Ann")).key == "1"
    assert Collection("user", DataUser).delete(old_value=DataUser(5, "Ann")).key == "5"
    with pytest.raises(ValueError, match="name"):
        Collection("user", User).insert(User("1", 7))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", None, True, 1.5, []])
def test_empty_keys_are_refused(key: Any) -> None:
    collection = Collection("thing", dict)
    for helper in (collection.insert, collection.update, collection.upsert):
        with pytest.raises(ValueError, match="non-empty 'id'"):
            helper({"id": key})
    with pytest.raises(ValueError, match="non-empty 'id'"):
        collection.delete(old_value={"id": key})
    with pytest.raises(ValueError, match="key"):
        collection.delete("")
    with pytest.raises(ValueError, match="key"):
        collection.insert({"id": "1"}, key="")


def test_a_key_may_be_given() -> None:
    assert Collection("n", int).insert(5, key="five").key == "five"
    assert Collection("user", dict, key="email").insert({"email": "a@b"}).key == "a@b"


def test_a_state_has_names_and_one_schema_for_a_type() -> None:
    state = define_state(
        {"users": Collection("user", User), "orders": {"type": "order", "schema": dict, "primary_key": "no"}}
    )
    assert getattr(state, "users") is state["users"]  # noqa: B009  # for type checkers it has no such attribute
    assert state["orders"].key == "no"
    assert list(state) == ["users", "orders"]
    with pytest.raises(AttributeError, match="carts"):
        getattr(state, "carts")  # noqa: B009
    with pytest.raises(ValueError, match="same entity type"):
        define_state({"a": Collection("user", User), "b": Collection("user", User)})
    for wrong in ({"not a name": Collection("x", int)}, {"_private": Collection("x", int)}, {"a": {"schema": int}}):
        with pytest.raises(ValueError, match=r"identifier|type"):
            define_state(wrong)


def test_collections_without_names_are_refused() -> None:
    with pytest.raises(TypeError, match="by name"):
        define_state([Collection("user", dict)])  # type: ignore[arg-type]


def test_what_is_no_schema_is_refused() -> None:
    for wrong in (object(), 7, {"type": "nonsense"}):
        with pytest.raises(TypeError, match=r"schema|Schema"):
            Collection("x", wrong)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="empty"):
        Collection("", int)


def test_keys_are_text_and_values_are_values() -> None:
    things: Collection[Any] = Collection("thing", Any)
    assert things.delete(7).key == "7"
    assert things.insert(1, key=7).key == "7"  # type: ignore[arg-type]
    wrongs: list[Any] = [True, 1.5, b"7", []]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="key"):
            things.delete(wrong)
    with pytest.raises(ValueError, match="not its JSON text"):
        things.insert(b'{"id":"1"}', key="1")


def test_schemas_that_look_like_functions_and_are_none() -> None:
    strict = schema_of(NewType("Id", int))
    assert strict.decode(b"7") == 7
    with pytest.raises(ValueError, match="int"):
        strict.decode(b'"x"')

    class Loads:
        def decode(self, text: Any) -> Any:
            return json.loads(text)

    assert schema_of(Loads()).decode(msgspec.Raw(b"[1]")) == [1]
    with pytest.raises(ValueError, match="IndexError"):
        schema_of(lambda value: value[0]).decode(b"[]")


class Renamed(msgspec.Struct, rename="camel"):
    user_id: str
    n: int = 0


class Model(pydantic.BaseModel):
    user_id: str = pydantic.Field(alias="userId")
    n: int = 0


@dataclass
class Numbered:
    user_id: int
    n: int = 0


class Typed(TypedDict):
    user_id: NotRequired[str]
    n: int


def keep(value: Any) -> Any:
    return dict(value)


KEYED: list[Any] = [
    Renamed,
    Model,
    Numbered,
    Typed,
    dict,
    Any,
    dict[str, Any],
    dict[str, int],
    {"type": "object"},
    keep,
]


@pytest.mark.parametrize("schema", KEYED, ids=lambda schema: getattr(schema, "__name__", "json schema"))
def test_the_event_s_key_is_put_into_a_value_that_has_none_or_another(schema: Any) -> None:
    things = Collection("thing", schema, key="user_id")
    name = "userId" if schema in (Renamed, Model) else "user_id"
    for value in ({"n": 1}, {"n": 1, name: "8"}, {"n": 1, name: 8}, {"n": 1, name: "7"}, {"n": 1, name: None}):
        row = things.row("7", msgspec.json.encode(value))
        assert things.key_of(row) == "7", value
        assert (row["n"] if isinstance(row, dict) else row.n) == 1
    assert things.insert({"n": 1}, key="7").value == {"n": 1}  # as it was given


def test_a_number_that_is_the_key_stays_a_number() -> None:
    things: Collection[Any] = Collection("thing", Any)
    assert things.row("7", b'{"id":7}') == {"id": 7}
    assert things.row("7", b'{"id":true}') == {"id": "7"}


def test_values_without_room_for_the_key_are_kept() -> None:
    assert Collection("thing", int).row("n", b"7") == 7
    anything: Collection[Any] = Collection("thing", Any)
    assert anything.row("n", b"[1]") == [1]
    assert Collection("thing", dict[str, int]).row("n", b'{"a":1}') == {"a": 1}
    assert Collection("thing", Numbered, key="user_id").row("user:7", b'{"user_id":7}') == Numbered(7)
    with pytest.raises(ValueError, match="user_id"):
        Collection("thing", Numbered, key="user_id").row("user:7", b'{"n":7}')


@pytest.mark.parametrize("txid", [7, "", b"t", True])
def test_a_txid_that_is_no_text_is_refused(txid: Any) -> None:
    things = Collection("thing", Any)
    for make in (things.insert, things.update, things.upsert):
        with pytest.raises(ValueError, match="txid"):
            make({"id": "1"}, txid=txid)
    with pytest.raises(ValueError, match="txid"):
        things.delete("1", txid=txid)


def test_empty_types_and_keys_are_refused() -> None:
    for name in ("", 7, None):
        with pytest.raises(ValueError, match="entity type"):
            Collection(name, Any)  # type: ignore[arg-type]
    things = Collection("thing", Any)
    for refused in (partial(things.insert, {"id": ""}), partial(things.insert, {}, key=""), partial(things.delete, "")):
        with pytest.raises(ValueError, match="give a key"):
            refused()


def test_custom_headers_do_not_replace_those_of_the_protocol() -> None:
    for name in ("operation", "txid", "timestamp", "control"):
        with pytest.raises(ValueError, match=name):
            Collection("thing", Any).insert({"id": "1"}, headers={name: "x"})


class Shop(StreamDB):
    users = Collection("user", User)


class LargeShop(Shop):
    orders = Collection("order", dict, key="no")


@pytest.fixture
def client() -> Client:
    return Client("http://127.0.0.1:1")  # nothing is sent


def test_collections_can_be_attributes_of_a_database(client: Client) -> None:
    db = LargeShop(client.stream("any"))
    assert dict(db.definition) == {"users": Shop.users, "orders": LargeShop.orders}
    assert db.users is db.table(Shop.users)
    assert isinstance(Shop.users, Collection)


def test_a_state_is_defined_once(client: Client) -> None:
    stream = client.stream("any")
    with pytest.raises(TypeError, match="Shop has collections as attributes"):
        Shop(stream, define_state({"users": Shop.users}))
    with pytest.raises(TypeError, match="pass the definition"):
        StreamDB(stream)

    class Reserved(StreamDB):
        offset = Collection("offset", int)  # type: ignore[assignment]

    with pytest.raises(ValueError, match="reserved: offset"):
        Reserved(stream)


def test_a_collection_in_another_class_is_itself() -> None:
    class App:
        users = Collection("user", User)

    assert App().users is App.users
