"""The producer's logic against a model of the server: answers lost, late, out of order, refused."""

from __future__ import annotations

import random

import pytest

from headwater import limits
from headwater.client.flows import AppendResult
from headwater.client.outbox import (
    DeliveryReport,
    Outbox,
    PendingBatch,
    ProducerIdentity,
    ProducerSettings,
    claimed_epoch,
    identity,
)
from headwater.client.session import Retry
from headwater.errors import (
    HeadwaterError,
    NetworkError,
    OverloadedError,
    SequenceGapError,
    StaleEpochError,
    StreamNotFoundError,
)


class Model:
    """What a server does with producer headers, as the protocol says it."""

    def __init__(self, epoch: int = -1) -> None:
        self.stored: list[bytes] = []
        self.epoch = epoch
        self.seq = -1

    def append(self, batch: PendingBatch) -> AppendResult | HeadwaterError:
        if batch.epoch < self.epoch:
            return StaleEpochError(epoch=self.epoch)
        if batch.epoch > self.epoch:
            assert batch.seq == 0
            self.epoch, self.seq = batch.epoch, -1
        if batch.seq <= self.seq:
            return AppendResult("x", duplicate=True)
        if batch.seq != self.seq + 1:
            return SequenceGapError()
        self.seq = batch.seq
        self.stored += batch.messages
        return AppendResult("x")


def outbox(
    reports: list[DeliveryReport] | None = None, who: ProducerIdentity | None = None, **settings: float
) -> Outbox:
    chosen = ProducerSettings(
        **{  # type: ignore[arg-type]
            "batch_bytes": 10,
            "linger_s": 0.0,
            "in_flight_max": 5,
            "queue_bytes": 1_000,
            "delivery_timeout_s": 1_000.0,
            **settings,
        }
    )
    on_delivery = None if reports is None else reports.append
    return Outbox(who or ProducerIdentity("p", 0, claiming=False), chosen, Retry(first_s=1, most_s=1), on_delivery)


def fail(box: Outbox, batch: PendingBatch, error: HeadwaterError, now: float = 0.0) -> None:
    box.failed(batch, error, now, 0.0).notify()


def settle(box: Outbox, batch: PendingBatch, answer: AppendResult | HeadwaterError, now: float = 0.0) -> None:
    if isinstance(answer, HeadwaterError):
        fail(box, batch, answer, now)
    else:
        box.stored(batch, answer).notify()


@pytest.mark.parametrize("seed", range(300))
def test_every_message_is_stored_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    reports: list[DeliveryReport] = []
    box, server = outbox(reports, in_flight_max=chance.randint(1, 5)), Model()
    messages = [b"%04d" % number for number in range(60)]
    waiting = list(messages)
    flight: list[PendingBatch] = []
    now = 0.0
    while waiting or box.metrics.bytes_waiting:
        now += 1.0
        for _ in range(chance.randint(0, 3)):
            if waiting and not box.full:
                box.add(waiting.pop(0), None, now)
        while (batch := box.take(now)) is not None:
            flight.append(batch)
        chance.shuffle(flight)
        for _ in range(chance.randint(0, len(flight))):
            batch = flight.pop()
            fate = chance.random()
            if fate < 0.2:
                fail(box, batch, NetworkError("never arrived"), now)
            elif fate < 0.4:
                server.append(batch)
                fail(box, batch, NetworkError("answer lost"), now)
            elif fate < 0.5:
                refused = OverloadedError()
                refused.retryable = True
                fail(box, batch, refused, now)
            else:
                settle(box, batch, server.append(batch), now)
    assert box.failure is None
    assert server.stored == messages
    assert sum(delivery.count for delivery in reports) == len(messages)
    assert box.metrics.in_flight == box.metrics.bytes_waiting == 0


def test_a_gap_that_no_batch_of_ours_explains_is_final() -> None:
    box = outbox()
    box.add(b"x", None, 0.0)
    batch = box.take(0.0)
    assert batch is not None
    fail(box, batch, SequenceGapError())
    assert isinstance(box.failure, SequenceGapError)
    with pytest.raises(SequenceGapError):
        box.check()


def test_a_failure_tells_everyone_behind_it_and_spares_those_before() -> None:
    reports: list[DeliveryReport] = []
    box = outbox(reports, batch_bytes=1)
    box.add(b"0", None, 0.0)
    first = box.take(0.0)
    assert first is not None
    box.stored(first, AppendResult("0")).notify()
    for number in range(1, 6):
        box.add(b"%d" % number, None, 0.0)
    one, two, three = box.take(0.0), box.take(0.0), box.take(0.0)
    assert one is not None
    assert two is not None
    assert three is not None
    fail(box, two, StreamNotFoundError())
    assert sum(delivery.count for delivery in reports if delivery.error) == 4
    settle(box, one, AppendResult("1"))
    settle(box, three, AppendResult("3"))
    assert sum(delivery.count for delivery in reports) == 6
    assert box.metrics.messages_delivered == 2
    assert box.metrics.bytes_waiting == 0


def test_the_first_batch_of_an_epoch_goes_alone() -> None:
    box = outbox(batch_bytes=1)
    for _ in range(3):
        box.add(b"x", None, 0.0)
    first = box.take(0.0)
    assert first is not None
    assert box.take(0.0) is None
    box.stored(first, AppendResult(""))
    assert box.take(0.0) is not None
    assert box.take(0.0) is not None


def test_a_claim_takes_the_next_epoch() -> None:
    box, server = outbox(who=ProducerIdentity("p", 3, claiming=True)), Model(epoch=7)
    box.add(b"x", None, 0.0)
    for _ in range(2):
        batch = box.take(0.0)
        assert batch is not None
        settle(box, batch, server.append(batch))
    assert (box.epoch, server.epoch, server.stored) == (8, 8, [b"x"])


@pytest.mark.parametrize("reason", ["not asked to", "may have been stored", "was ours already"])
def test_no_claim_that_could_store_twice(reason: str) -> None:
    box, server = outbox(who=ProducerIdentity("p", 3, claiming=reason != "not asked to")), Model()
    box.add(b"x", None, 0.0)
    batch = box.take(0.0)
    assert batch is not None
    if reason == "may have been stored":
        server.append(batch)
        fail(box, batch, NetworkError())
    elif reason == "was ours already":
        settle(box, batch, server.append(batch))
        box.add(b"y", None, 0.0)
    else:
        fail(box, batch, OverloadedError(), 0.0)
        box = outbox(who=ProducerIdentity("p", 3, claiming=False))
        box.add(b"x", None, 0.0)
    server.epoch = 9
    batch = box.take(100.0)
    assert batch is not None
    settle(box, batch, server.append(batch), 100.0)
    assert isinstance(box.failure, StaleEpochError)


def test_a_batch_is_given_up_after_its_time() -> None:
    box = outbox(delivery_timeout_s=5)
    box.add(b"x", None, 0.0)
    for now in (0.0, 3.0, 6.0):
        batch = box.take(now)
        assert batch is not None
        fail(box, batch, NetworkError(), now)
    assert isinstance(box.failure, NetworkError)


def test_the_server_says_how_long_to_wait() -> None:
    box = outbox()
    box.add(b"x", None, 0.0)
    batch = box.take(0.0)
    assert batch is not None
    error = OverloadedError()
    error.retry_after_s = 7.0
    fail(box, batch, error)
    assert box.take(6.9) is None
    assert box.wait_s(6.0) == pytest.approx(1.0)
    assert box.take(7.0) is batch


def test_messages_linger_and_flush() -> None:
    box = outbox(linger_s=1.0, batch_bytes=1_000)
    assert box.add(b"x", None, 0.0)
    assert not box.add(b"y", None, 0.1)
    assert box.take(0.5) is None
    assert box.wait_s(0.5) == pytest.approx(0.5)
    box.flushing = 1
    batch = box.take(0.5)
    assert batch is not None
    assert batch.messages == [b"x", b"y"]


def test_identities() -> None:
    assert identity(None, None, auto_claim=False).id != identity(None, None, auto_claim=False).id
    assert identity("p", 4, auto_claim=False) == ProducerIdentity("p", 4, claiming=False)
    for producer_id, epoch in (("p", None), ("", 1), ("p", -1)):
        with pytest.raises(ValueError, match=r"producer|epoch"):
            identity(producer_id, epoch, auto_claim=False)


def test_claimed_epochs_grow_with_the_clock_and_fit() -> None:
    now_s = 1_800_000_000.0
    assert claimed_epoch(now_s, 0.999) < claimed_epoch(now_s + 0.002, 0.0)
    assert 0 <= claimed_epoch(0.0, 0.5) < claimed_epoch(4e9, 0.9) <= limits.PRODUCER_INTEGER_MAX


def test_settings_are_checked() -> None:
    for wrong in ({"batch_bytes": 0}, {"in_flight_max": 0}, {"linger_s": -1.0}, {"delivery_timeout_s": 0.0}):
        with pytest.raises(ValueError, match="must"):
            outbox(**wrong)
