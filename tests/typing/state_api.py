"""State as a type checker sees it: mypy and pyright agree on every line. This file is checked, never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

import msgspec
import pydantic

from headwater.client import AsyncStream, Stream
from headwater.state import (
    AsyncStreamDB,
    BadEvent,
    ChangeEvent,
    ChangeHeaders,
    Collection,
    ControlEvent,
    MaterializedState,
    Preloaded,
    Query,
    StateChange,
    StateDefinition,
    StateTable,
    StreamDB,
    define_state,
    is_change_event,
    parse_event,
)


class User(msgspec.Struct):
    id: str


@dataclass
class Order:
    no: int


class Cart(pydantic.BaseModel):
    id: str


def weight(value: Any) -> float:
    return float(value)


users = Collection("user", User)
orders = Collection("order", Order, key="no", indexes=("customer",))
carts = Collection("cart", Cart)
weights = Collection("weight", weight)
things = Collection("thing", {"type": "object"})
state = define_state({"users": users, "orders": orders, "carts": {"type": "cart", "schema": Cart}})

assert_type(users, Collection[User])
assert_type(orders, Collection[Order])
assert_type(carts, Collection[Cart])
assert_type(weights, Collection[float])
assert_type(things, Collection[Any])
assert_type(state, StateDefinition)
assert_type(users.insert(User("1"), txid="t"), ChangeEvent[Any])
assert_type(users.checked({"id": "1"}), User)


def told(change: StateChange[Any]) -> None:
    assert_type(change.key, str)


def together(changes: list[StateChange[Any]]) -> None:
    assert_type(changes[0].headers, ChangeHeaders | None)


def letter(event: BadEvent) -> None:
    assert_type(event.reason, str)


def blocking(stream: Stream) -> None:
    with StreamDB(stream, state, checkpoint="file", on_bad_event=letter) as db:
        assert_type(db.preload(10.0), Preloaded)
        table = db.table(users)
        assert_type(table, StateTable[User])
        assert_type(table["1"], User)
        assert_type(table.get("1"), User | None)
        assert_type(table.by(team="x"), dict[str, User])
        some = table.query(lambda user: user.id > "1", order_by="id", limit=3)
        assert_type(some, Query[User])
        assert_type(some.first(), User | None)
        assert_type(some.values(), list[User])
        end = table.on_change(told)
        end()
        db.on_batch(together)()
        with db.reading():
            assert_type(len(table), int)
        with db.transaction() as transaction:
            transaction.table(users).insert(User("1"))
            transaction["users"].insert(User("1"))
            _ = transaction.usres  # type: ignore[attr-defined]  # pyright: ignore
        db.await_txid("t", timeout_s=3)
        assert_type(db.publish_snapshot(), Stream)
        _ = db.prodcuts  # type: ignore[attr-defined]  # pyright: ignore
        _ = state.prodcuts  # type: ignore[attr-defined]  # pyright: ignore
        StreamDB(stream, state, live="websocket")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def asynchronous(stream: AsyncStream) -> None:
    async with AsyncStreamDB(stream, state) as db:
        await db.preload()
        assert_type(db.table(orders), StateTable[Order])
        async with db.transaction() as transaction:
            transaction.table(users).delete("1")
        async for change in db.changes("users"):
            assert_type(change, StateChange[Any])
        assert_type(await db.publish_snapshot(), AsyncStream)


class Shop(StreamDB):
    users = Collection("user", User)
    orders = Collection("order", Order, key="no")


class AsyncShop(AsyncStreamDB):
    users = Collection("user", User)


class App:
    users = Collection("user", User)  # of a class that is no database


def declared(stream: Stream, time: datetime) -> None:
    with Shop(stream, at=time) as db:
        assert_type(db, Shop)
        assert_type(db.preload().unfit, dict[str, int])
        assert_type(db.users, StateTable[User])
        assert_type(db.users["1"].id, str)
        assert_type(db.orders.unfit, frozenset[str])
        assert_type(Shop.users, Collection[User])
        assert_type(App().users, Collection[User])
        _ = db.prodcuts  # type: ignore[attr-defined]  # pyright: ignore


async def declared_asynchronous(stream: AsyncStream) -> None:
    async with AsyncShop(stream, at="-1") as db:
        assert_type(db.users, StateTable[User])
        _ = db.prodcuts  # type: ignore[attr-defined]  # pyright: ignore


def materialized(message: object) -> None:
    made = MaterializedState()
    event = parse_event(message)
    assert_type(event, ChangeEvent[Any] | ControlEvent)
    if is_change_event(event):
        made.apply(event)
    assert_type(made.types, list[str])
