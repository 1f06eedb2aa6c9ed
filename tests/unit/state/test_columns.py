"""Collections as Arrow: the types of schemas, and JSON text where there is none."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pydantic
import pytest

from headwater.errors import SchemaError
from headwater.protocol.state.events import EventDecoder
from headwater.state import Collection, define_state
from headwater.state.database import Database
from headwater.state.tables import StateTable

RAW = EventDecoder(msgspec.Raw)


class Colour(enum.Enum):
    RED = "red"


class Address(msgspec.Struct, rename="camel"):
    post_code: str
    lines: list[str] = []


class Everything(msgspec.Struct, rename="camel"):
    id: str
    unit_price: float
    count: int | None
    paid: bool
    at: datetime
    day: date
    colour: Colour
    status: Literal["new", "old"]
    address: Address
    number: UUID
    exact: Decimal
    anything: Any
    either: int | str
    by_name: dict[str, int]


VALUE = {
    "id": "1",
    "unitPrice": 2.5,
    "count": None,
    "paid": True,
    "at": "2026-01-08T00:00:00Z",
    "day": "2026-01-08",
    "colour": "red",
    "status": "new",
    "address": {"postCode": "9000", "lines": ["a", "b"]},
    "number": "12345678-1234-5678-1234-567812345678",
    "exact": "1.10",
    "anything": {"x": [1]},
    "either": 5,
    "byName": {"a": 1},
}


def table(schema: Any, *values: Any, key: str = "id") -> StateTable[Any]:
    database = Database(define_state({"items": Collection("item", schema, key=key)}), txids_kept=3)
    events = [
        {"type": "item", "key": str(n), "value": value, "headers": {"operation": "insert"}}
        for n, value in enumerate(values, 1)
    ]
    database.apply(RAW.decode_array(json.dumps(events).encode()))
    return database.tables["items"]


def test_every_type_of_a_struct() -> None:
    made = table(Everything, VALUE).arrow()
    assert made.schema.names == ["key", *VALUE]
    types = dict(zip(made.schema.names, made.schema.types, strict=True))
    assert types["unitPrice"] == pa.float64()
    assert types["count"] == pa.int64()
    assert types["at"] == pa.timestamp("us", "UTC")
    assert types["address"] == pa.struct([("postCode", pa.string()), ("lines", pa.list_(pa.string()))])
    assert made.to_pylist() == [
        {
            **VALUE,
            "key": "1",
            "at": datetime(2026, 1, 8, tzinfo=UTC),
            "day": date(2026, 1, 8),
            "exact": '"1.10"',
            "anything": '{"x":[1]}',
            "either": "5",
            "byName": '{"a":1}',
        }
    ]


@dataclasses.dataclass
class Product:
    key: str
    price: float


class Typed(TypedDict):
    id: str
    price: float


class Model(pydantic.BaseModel):
    id: str
    number: UUID
    price: float | None = None


def test_dataclasses_typed_dicts_and_models() -> None:
    assert table(Product, {"key": "tea", "price": 1}, key="key").arrow().to_pylist() == [
        {"_key": "1", "key": "1", "price": 1.0}
    ]
    assert table(Typed, {"id": "1", "price": 1}).arrow().to_pylist() == [{"key": "1", "id": "1", "price": 1.0}]
    number = "12345678-1234-5678-1234-567812345678"
    made = table(Model, {"id": "1", "number": number}).arrow(["number", "price"])
    assert made.to_pylist() == [{"number": number, "price": None}]
    assert made.schema.types == [pa.string(), pa.float64()]


@pytest.mark.parametrize("schema", [dict, lambda value: value, {"type": "object"}, dict[str, Any]])
def test_without_known_fields_a_value_is_json(schema: Any) -> None:
    made = table(schema, {"id": "1", "n": 12345678901234567890123}).arrow()
    assert made.to_pylist() == [{"key": "1", "value": '{"id":"1","n":12345678901234567890123}'}]


def test_an_empty_collection_has_its_types() -> None:
    assert table(Typed).arrow().schema == pa.schema(
        [("key", pa.string()), ("id", pa.string()), ("price", pa.float64())]
    )


def test_what_does_not_work() -> None:
    with pytest.raises(ValueError, match="there is no column 'name'; those of 'item' are key, id, price"):
        table(Typed).arrow(["name"])

    class Large(msgspec.Struct):
        id: str
        count: int

    with pytest.raises(SchemaError, match="the column 'count' cannot be int64"):
        table(Large, {"id": "1", "count": 2**63}).arrow()


class Place(msgspec.Struct, omit_defaults=True):
    city: str = "Ghent"
    floors: list[int] = []


class Pair(msgspec.Struct, array_like=True):
    first: int
    second: str = "two"


class Sparse(msgspec.Struct, omit_defaults=True):
    id: str
    pieces: int = 1
    note: str | msgspec.UnsetType = msgspec.UNSET
    place: Place | None = None
    places: list[Place] = []
    pair: Pair | None = None
    by_name: dict[str, Place] = {}


def test_defaults_that_json_leaves_out() -> None:
    first, second = table(Sparse, {}, {"place": {}, "places": [{}, {"floors": [2]}], "pair": [1]}).arrow().to_pylist()
    assert first == {
        "key": "1",
        "id": "1",
        "pieces": 1,
        "note": None,
        "place": None,
        "places": [],
        "pair": None,
        "by_name": "{}",
    }
    ghent = {"city": "Ghent", "floors": []}
    assert second["place"] == ghent
    assert second["places"] == [ghent, {"city": "Ghent", "floors": [2]}]
    assert second["pair"] == {"first": 1, "second": "two"}


class Part(msgspec.Struct):
    id: str
    parts: list[Part] = []
    whole: Part | None = None


def test_a_type_that_contains_itself_is_json() -> None:
    made = table(Part, {"parts": [{"id": "2"}]}).arrow()
    assert made.to_pylist() == [{"key": "1", "id": "1", "parts": '[{"id":"2","parts":[],"whole":null}]', "whole": None}]
