"""The shop makes events that fold to a consistent business, and goes on where it was."""

from __future__ import annotations

import itertools
import random

import pytest

from headwater import limits
from headwater.demo.books import Books
from headwater.demo.shop import STREAMS, Shop


def run(seed: int, occasions: int, books: Books, known: Books | None = None) -> None:
    shop = Shop(random.Random(seed), known.by_type_and_key() if known is not None else None)
    for events in itertools.islice(shop.events(), occasions):
        for event in events:
            message = {
                "type": event.type,
                "key": event.key,
                "value": event.value,
                "headers": {"operation": event.headers.operation},
            }
            books.note(STREAMS[event.type], message)  # type: ignore[index]


def business(books: Books) -> dict[str, dict[str, dict[str, object]]]:
    entities: dict[str, dict[str, dict[str, object]]] = {kind: {} for kind in STREAMS}
    for (_, kind, key), value in books.state().items():
        entities[kind][key] = value
    return entities


@pytest.mark.parametrize("seed", range(3))
def test_every_event_is_new_and_the_state_is_that_of_a_shop(seed: int) -> None:
    books = Books()
    run(seed, 5000, books)
    assert not books.bad
    assert not books.superseded
    shop = business(books)
    assert 0 < len(shop["customer"]) <= limits.DEMO_CUSTOMERS_MAX
    assert 0 < len(shop["order"]) <= limits.DEMO_OPEN_ORDERS_MAX
    assert all(0 <= item["quantity"] <= 100 for item in shop["stock"].values())  # type: ignore[operator]
    paid = {key for key, order in shop["order"].items() if order["status"] != "placed"}
    assert {payment["order"] for payment in shop["payment"].values()} == paid


def test_all_operations_happen_in_every_stream_that_has_them() -> None:
    seen = set()
    for events in itertools.islice(Shop(random.Random(1)).events(), 20_000):
        seen |= {(event.type, event.headers.operation) for event in events}
    everything = set(itertools.product(STREAMS, ("insert", "update", "delete")))
    assert seen == everything - {("payment", "update")}


def test_keys_belong_to_one_type() -> None:
    books = Books()
    run(2, 5000, books)
    assert len({key for _, _, key in books.known}) == len(books.known)


def test_a_shop_opens_again_as_it_was() -> None:
    books, before = Books(), Books()
    run(3, 3000, books)
    run(3, 3000, before)
    run(4, 3000, books, before)
    assert not books.superseded  # no version and no key was used twice
    assert len(business(books)["stock"]) <= 50
