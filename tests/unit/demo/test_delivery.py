"""What arrives: every event, some of them late or twice, and damaged ones, which the books recognise."""

from __future__ import annotations

import itertools
import json
import random

import msgspec

from headwater.demo.books import Books
from headwater.demo.delivery import DAMAGES, UnreliableDelivery
from headwater.demo.shop import STREAMS, Shop

OCCASIONS = 5000


def test_the_state_is_that_of_the_events_in_order() -> None:
    sent, arrived = Books(), Books()
    delivery = UnreliableDelivery(random.Random(1))
    for events in itertools.islice(Shop(random.Random(1)).events(), OCCASIONS):
        for event in events:
            sent.note(STREAMS[event.type], msgspec.to_builtins(event))  # type: ignore[index]
        for stream, message in delivery.deliver(events):
            arrived.note(stream, msgspec.to_builtins(message))
    for stream, message in delivery.rest():
        arrived.note(stream, msgspec.to_builtins(message))
    assert arrived.state() == sent.state()
    assert arrived.events == sent.events + delivery.bad + delivery.repeated
    assert len(arrived.bad) == delivery.bad > 0
    assert arrived.superseded > delivery.repeated > 0  # so some were overtaken
    assert delivery.late > 0


def test_all_damages_are_bad_events_of_json() -> None:
    event = msgspec.to_builtins(next(Shop(random.Random(1)).events())[0])
    for damage in DAMAGES:
        books = Books()
        books.note("shop/stock", json.loads(json.dumps(damage(event))))
        assert len(books.bad) == 1, damage
