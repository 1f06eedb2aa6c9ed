from __future__ import annotations

import pytest

from headwater.log.offsets import Offset
from headwater.protocol.subscriptions.config import Delivery, SubscriptionConfig
from headwater.server.auth.grants import Grant
from headwater.server.subscriptions.records import (
    SigningKey,
    SigningKeys,
    StreamCursor,
    SubscriptionRecord,
    WakeInFlight,
    Wakes,
    WakeStream,
    cursor_key,
    decode_cursor,
    decode_keys,
    decode_record,
    decode_wakes,
    encode,
    write_cursor,
)

STREAM = WakeStream("a", True, None, StreamCursor(5, 10, 5))
LEASED = WakeInFlight("w_1", 3, (STREAM,), True, "worker", "c", 5_000)


def test_documents_are_read_as_they_were_written() -> None:
    config = SubscriptionConfig(Delivery.PULL_WAKE, "a/*", ("b",), None, "wake", 1_000, "text")
    record = SubscriptionRecord("s", "life", config, 5, Grant("name", "id", ("read:*",)), "http://server")
    assert decode_record(encode(record)) == record
    wakes = Wakes(3, LEASED, 2, "reason", 7_000)
    assert decode_wakes(encode(wakes)) == wakes
    assert decode_wakes(encode(Wakes())) == Wakes()
    keys = SigningKeys(b"secret", (SigningKey(b"1", 1, 2), SigningKey(b"2", 3)))
    assert decode_keys(encode(keys)) == keys
    write = write_cursor("life", "a/b", StreamCursor(5, 10, 3))
    assert write.key == cursor_key("life", "a/b") == "subscription/cursor/life/a/b"
    assert decode_cursor(write.data or b"") == StreamCursor(5, 10, 3)
    assert decode_cursor(encode(Offset(5, 10))) == StreamCursor(5, 10)  # as they were written at first


@pytest.mark.parametrize(
    ("wakes", "due_ms"),
    [
        (Wakes(), None),
        (Wakes(1, WakeInFlight("w", 1)), None),  # a webhook is under way
        (Wakes(1, WakeInFlight("w", 1, tell_ms=50)), 50),
        (Wakes(1, WakeInFlight("w", 1, lease_until_ms=70)), 70),
        (Wakes(1, WakeInFlight("w", 1, lease_until_ms=70), next_attempt_ms=90), 90),  # not while a retry is scheduled
    ],
)
def test_when_something_is_due(wakes: Wakes, due_ms: int | None) -> None:
    assert wakes.due_ms() == due_ms


def test_the_end_of_a_wake_keeps_the_generation() -> None:
    wakes = Wakes(3, LEASED, 2, "reason", 7_000)
    assert wakes.over() == Wakes(3, None, 2, "reason")
    assert wakes.succeeded() == Wakes(3, LEASED)
    later = WakeInFlight("w_2", 4)
    assert wakes.over().issued(later) == Wakes(4, later, 2, "reason")


def test_a_lease_ends_at_its_time() -> None:
    assert LEASED.is_held(4_999)
    assert not LEASED.is_held(5_000)
    assert not WakeInFlight("w", 1).is_held(0)
