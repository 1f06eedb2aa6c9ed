"""A small shop: customers come and go, orders are placed and move on, stock is sold and filled up again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from headwater import limits
from headwater.state import Collection, MaterializedState, define_state
from headwater.state.events import ChangeEvent

_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "John", "Leslie", "Margaret", "Niklaus")
_CITIES = ("Basel", "Bruges", "Delft", "Ghent", "Lyon", "Porto", "Turku", "Uppsala")
_GOODS = ("kettle", "lamp", "chair", "clock", "vase", "bowl", "rug", "mirror", "bench", "shelf")
_NEXT = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}

STATE = define_state(
    {
        "customers": Collection("customer", dict[str, Any]),
        "stock": Collection("stock", dict[str, Any], key="item"),
        "orders": Collection("order", dict[str, Any]),
    }
)


class Shop:
    """Makes events. It goes on from a state, so that a shop that was closed opens again as it was."""

    def __init__(self, chance: random.Random, state: MaterializedState) -> None:
        self._chance = chance
        self._customers = dict(state.get_type("customer"))
        self._stock = dict(state.get_type("stock"))
        self._orders = dict(state.get_type("order"))
        self._made = 0
        self._run = f"{chance.getrandbits(32):08x}"

    def events(self) -> Iterator[list[ChangeEvent[Any]]]:
        """What happens, one occasion after the other; the changes of one belong together."""
        for number, goods in enumerate(_GOODS * 5):
            item = f"{goods}-{number // len(_GOODS)}"
            if item not in self._stock:
                yield [self._stocked(item, {"item": item, "quantity": 100, "price": 5 + number})]
        while True:
            yield self._occasion()

    def _occasion(self) -> list[ChangeEvent[Any]]:
        die = self._chance.random()
        if die < 0.10 or not self._customers:
            return [self._customer()]
        if die < 0.15:
            return [self._customer_moves()]
        if die < 0.45 and len(self._orders) < limits.DEMO_OPEN_ORDERS_MAX:
            return self._order()
        if self._orders:
            return [self._order_moves_on()]
        return self._order()

    def _customer(self) -> ChangeEvent[Any]:
        if len(self._customers) >= limits.DEMO_CUSTOMERS_MAX:
            leaving = self._pick(self._customers)
            del self._customers[leaving]
            return STATE.customers.delete(key=leaving, **self._told())
        chance = self._chance
        customer = {
            "id": self._id("c"),
            "name": f"{chance.choice(_NAMES)} {chance.choice(_NAMES)[0]}.",
            "city": chance.choice(_CITIES),
        }
        self._customers[customer["id"]] = customer
        return STATE.customers.insert(customer, **self._told())

    def _customer_moves(self) -> ChangeEvent[Any]:
        known = self._customers[self._pick(self._customers)]
        moved = {**known, "city": self._chance.choice(_CITIES)}
        self._customers[known["id"]] = moved
        return STATE.customers.update(moved, old_value=known, **self._told())

    def _order(self) -> list[ChangeEvent[Any]]:
        item = self._stock[self._pick(self._stock)]
        told = self._told()
        if item["quantity"] == 0:
            return [self._stocked(item["item"], {**item, "quantity": 100})]
        order = {
            "id": self._id("o"),
            "customer": self._pick(self._customers),
            "item": item["item"],
            "status": "placed",
        }
        self._orders[order["id"]] = order
        sold = {**item, "quantity": item["quantity"] - 1}
        self._stock[item["item"]] = sold
        return [STATE.orders.insert(order, **told), STATE.stock.update(sold, **told)]

    def _order_moves_on(self) -> ChangeEvent[Any]:
        order = self._orders[self._pick(self._orders)]
        status = _NEXT.get(order["status"])
        if status is None:
            del self._orders[order["id"]]
            return STATE.orders.delete(key=order["id"], old_value=order, **self._told())
        moved = {**order, "status": status}
        self._orders[order["id"]] = moved
        return STATE.orders.update(moved, **self._told())

    def _stocked(self, item: str, value: dict[str, Any]) -> ChangeEvent[Any]:
        known = self._stock.get(item)
        self._stock[item] = value
        if known is None:
            return STATE.stock.insert(value, **self._told())
        return STATE.stock.update(value, old_value=known, **self._told())

    def _pick(self, among: dict[str, Any]) -> str:
        """Any of the last hundred or so: what is new is what moves."""
        keys = list(among) if len(among) < 128 else list(among)[-128:]
        return self._chance.choice(keys)

    def _id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._run}-{self._made}"

    def _told(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"txid": f"{self._run}-{self._made}-{self._chance.getrandbits(24):06x}", "timestamp": now}
