"""A small shop: customers register and leave, orders are placed, paid and delivered, stock is sold and refilled.

Every value has a `version`, which grows with each change of its key. A delete has one too, in its value, so that a
reader that gets the events in another order still knows the newest one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from headwater import limits
from headwater.protocol.state.events import ChangeEvent, ChangeHeaders

_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "John", "Leslie", "Margaret", "Niklaus")
_CITIES = ("Basel", "Bruges", "Delft", "Ghent", "Lyon", "Porto", "Turku", "Uppsala")
_COLOURS = ("blue", "green", "grey", "red", "white")
_GOODS = ("bench", "bowl", "chair", "clock", "kettle", "lamp", "mirror", "rug", "shelf", "vase")
_METHODS = ("card", "invoice", "transfer")
_NEXT = {"paid": "shipped", "shipped": "delivered"}
_FULL = 100  # maximum stock of an item

Type: TypeAlias = Literal["customer", "order", "payment", "stock"]
STREAMS: Mapping[Type, str] = {
    "customer": "shop/customers",
    "order": "shop/orders",
    "payment": "shop/payments",
    "stock": "shop/stock",
}
Value: TypeAlias = dict[str, Any]


class Known(msgspec.Struct, frozen=True):
    """The newest version of a key, and its value unless it was deleted."""

    version: int
    value: Value | None


class Shop:
    """Generates events. It continues from the known state of each type and key, so that a later run can resume.

    Keys are never reused, not even for another type. Only stock items return after they were deleted.
    """

    def __init__(self, chance: random.Random, known: Mapping[tuple[str, str], Known] | None = None) -> None:
        self._chance = chance
        self._values: dict[str, dict[str, Value]] = {kind: {} for kind in STREAMS}
        self._versions: dict[str, int] = {}
        self._made = 0
        for (kind, key), entity in (known or {}).items():
            if entity.value is not None:
                self._values[kind][key] = entity.value
            if entity.value is not None or kind == "stock":
                self._versions[key] = entity.version
            if kind != "stock":
                self._made = max(self._made, int(key.rpartition("-")[2]))

    def events(self) -> Iterator[list[ChangeEvent[Value]]]:
        """Generate groups of events. The events of a group belong together."""
        for number, item in enumerate(f"{colour}-{goods}" for colour in _COLOURS for goods in _GOODS):
            if item not in self._versions:
                yield [self._put("stock", item, {"item": item, "quantity": _FULL, "price_cents": 550 + 100 * number})]
        while True:
            yield self._occasion()

    def _occasion(self) -> list[ChangeEvent[Value]]:
        die = self._chance.random()
        if die < 0.10 or not self._values["customer"]:
            return [self._customer_comes_or_goes()]
        if die < 0.15:
            return [self._customer_moves()]
        if die < 0.16:
            return [self._range_changes()]
        orders = self._values["order"]
        if not orders or (die < 0.40 and len(orders) < limits.DEMO_OPEN_ORDERS_MAX):
            return self._order()
        return self._order_moves_on()

    def _customer_comes_or_goes(self) -> ChangeEvent[Value]:
        chance = self._chance
        if len(self._values["customer"]) >= limits.DEMO_CUSTOMERS_MAX:
            return self._remove("customer", self._pick("customer"))
        self._made += 1
        key = f"customer-{self._made}"
        name = f"{chance.choice(_NAMES)} {chance.choice(_NAMES)[0]}."
        return self._put("customer", key, {"id": key, "name": name, "city": chance.choice(_CITIES)})

    def _customer_moves(self) -> ChangeEvent[Value]:
        key = self._pick("customer")
        return self._put("customer", key, {**self._values["customer"][key], "city": self._chance.choice(_CITIES)})

    def _range_changes(self) -> ChangeEvent[Value]:
        """An item is no longer sold, or is sold again."""
        stock = self._values["stock"]
        gone = [key for key in self._versions if "-" in key and key not in stock and key.split("-")[0] in _COLOURS]
        if gone and (self._chance.random() < 0.5 or len(stock) < len(_GOODS)):
            item = self._chance.choice(gone)
            return self._put("stock", item, {"item": item, "quantity": _FULL, "price_cents": 950})
        return self._remove("stock", self._pick("stock"))

    def _order(self) -> list[ChangeEvent[Value]]:
        item = self._values["stock"][self._pick("stock")]
        pieces = self._chance.randint(1, 3)
        if item["quantity"] < pieces:
            return [self._put("stock", item["item"], {**item, "quantity": _FULL})]
        self._made += 1
        order = {
            "id": f"order-{self._made}",
            "customer": self._pick("customer"),
            "item": item["item"],
            "pieces": pieces,
            "total_cents": pieces * item["price_cents"],
            "status": "placed",
        }
        left = {**item, "quantity": item["quantity"] - pieces}
        return [self._put("order", order["id"], order), self._put("stock", item["item"], left)]

    def _order_moves_on(self) -> list[ChangeEvent[Value]]:
        key = self._pick("order")
        order = self._values["order"][key]
        payment = key.replace("order", "payment")
        if order["status"] == "placed":
            method = self._chance.choice(_METHODS)
            paid = {"id": payment, "order": key, "amount_cents": order["total_cents"], "method": method}
            return [self._put("payment", payment, paid), self._put("order", key, {**order, "status": "paid"})]
        if order["status"] in _NEXT:
            return [self._put("order", key, {**order, "status": _NEXT[order["status"]]})]
        return [self._remove("order", key), self._remove("payment", payment)]

    def _put(self, kind: Type, key: str, value: Value) -> ChangeEvent[Value]:
        known = self._values[kind]
        operation: Literal["insert", "update"] = "update" if key in known else "insert"
        known[key] = value | {"version": self._next_version(key)}
        return ChangeEvent(type=kind, key=key, value=known[key], headers=self._headers(operation))

    def _remove(self, kind: Type, key: str) -> ChangeEvent[Value]:
        del self._values[kind][key]
        value = {"version": self._next_version(key)}
        if kind != "stock":
            del self._versions[key]
        return ChangeEvent(type=kind, key=key, value=value, headers=self._headers("delete"))

    def _next_version(self, key: str) -> int:
        self._versions[key] = self._versions.get(key, 0) + 1
        return self._versions[key]

    def _headers(self, operation: Literal["insert", "update", "delete"]) -> ChangeHeaders:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return ChangeHeaders(operation=operation, timestamp=now)

    def _pick(self, kind: Type) -> str:
        """Pick one of the last hundred or so, because recent entities change most."""
        keys = list(self._values[kind])
        return self._chance.choice(keys[-128:])
