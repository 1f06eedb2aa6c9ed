"""The idempotent producer without its input and output: what to send when, and what an answer means.

Messages wait in the order given, are packed into batches by size or after `linger_s`, and go out numbered, up to
`in_flight_max` at a time. A batch is retried until it is answered, always with its number, so the server stores it once
and in order. One that arrives before its predecessor is refused (409) and waits for it. A non-retryable error fails
the batch and all that follow it: no batch is ever left out in the middle.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from headwater import limits
from headwater.client.codecs import body_of
from headwater.client.effects import Flow, Report
from headwater.client.flows import Appended, append_request, appended
from headwater.client.session import Retry, Session, attempt
from headwater.errors import (
    ClientError,
    HeadwaterError,
    ProducerReusedError,
    SequenceGapError,
    StaleEpochError,
    StreamClosedError,
)
from headwater.log.producers import ProducerTuple

log = logging.getLogger(__name__)

EPOCH_CHANCE_BITS = 12
EPOCH_START_S = 1_704_067_200  # 2024-01-01: milliseconds and 12 bits from then fit into an epoch until 2093


class Delivery(msgspec.Struct, frozen=True):
    """What became of messages: stored, the stream now ending at `offset`, or failed with `error`."""

    count: int
    offset: str = ""
    duplicate: bool = False
    error: HeadwaterError | None = None


OnDelivery: TypeAlias = Callable[[Delivery], Any]


class Outcome(msgspec.Struct, frozen=True):
    """What became of `messages` messages, and the callbacks to call with it."""

    messages: int = 0
    report: Report | None = None  # of an error that will be retried
    calls: list[tuple[OnDelivery, Delivery]] = []

    def notify(self) -> None:
        for callback, delivery in self.calls:
            try:
                callback(delivery)
            except Exception:  # it must not take the producer with it
                log.exception("a delivery callback failed")


class Identity(msgspec.Struct, frozen=True):
    """Who the server takes a producer for."""

    id: str
    epoch: int
    claiming: bool


def identity(producer_id: str | None, epoch: int | None, *, auto_claim: bool) -> Identity:
    """A new producer if it has no id; one that goes on under its id with a higher epoch, given or claimed."""
    if epoch is not None and not 0 <= epoch <= limits.PRODUCER_INTEGER_MAX:
        raise ValueError(f"epoch must be from 0 to 2^53-1, got {epoch}")
    if producer_id is None:
        return Identity(uuid.uuid4().hex, epoch or 0, auto_claim)
    if not (producer_id and producer_id.isascii() and producer_id.isprintable()):
        raise ValueError(f"a producer's id must be printable ASCII, got {producer_id!r}")
    if epoch is None and not auto_claim:
        raise ValueError(
            "a producer with an id of its own needs an epoch higher than that of its last run, or auto_claim=True: "
            "in an epoch used before, the server would take new messages for repeats"
        )
    return Identity(producer_id, claimed_epoch(time.time(), random.random()) if epoch is None else epoch, auto_claim)


class ProducerMetrics(msgspec.Struct):
    """Counts since the producer was made; what waits and is in flight as of now."""

    messages: int = 0
    messages_delivered: int = 0
    messages_failed: int = 0
    bytes_delivered: int = 0
    batches_delivered: int = 0
    requests: int = 0
    retries: int = 0
    duplicates: int = 0  # batches that the server had already
    bytes_waiting: int = 0
    in_flight: int = 0


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    batch_bytes: int
    linger_s: float
    in_flight_max: int
    queue_bytes: int
    delivery_timeout_s: float

    def __post_init__(self) -> None:
        if min(self.batch_bytes, self.in_flight_max, self.queue_bytes) < 1:
            raise ValueError("batch_bytes, in_flight_max and queue_bytes must be at least 1")
        if self.linger_s < 0 or self.delivery_timeout_s <= 0:
            raise ValueError("linger_s must not be negative and delivery_timeout_s must be more than 0")


class PendingBatch(msgspec.Struct, eq=False):
    """A batch that is not stored yet: its number, and what happened to it so far."""

    messages: list[bytes]
    bytes: int
    callbacks: list[OnDelivery]
    since: float
    epoch: int = 0
    seq: int = -1
    attempts: int = 0
    in_flight: bool = False
    uncertain: bool = False  # an attempt may have been stored without our knowing
    is_first: bool = False  # all its predecessors were stored when it was sent
    out_of_order: bool = False  # arrived before its predecessor
    closes: bool = False  # the stream is closed with it
    due: float = 0.0


class Outbox:
    """All that a producer knows. Time and chance come in as arguments; shells do the rest."""

    def __init__(
        self,
        identity: Identity,
        settings: ProducerSettings,
        retry: Retry,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.id = identity.id
        self.epoch = identity.epoch
        self.metrics = ProducerMetrics()
        self.failure: HeadwaterError | None = None
        self.closing = False
        self.stopped = False
        self.flushing = 0
        self.finishing = False  # the stream is to be closed behind what was appended
        self.stream_closed = False
        self.settled = 0  # messages that are stored or failed, and whose callbacks were called
        self._settings = settings
        self._retry = retry
        self._on_delivery = on_delivery
        self._claims_left = limits.PRODUCER_CLAIMS_MAX if identity.claiming else 0
        self._epoch_confirmed = False  # something was stored in this epoch: it is ours
        self._next_seq = 0
        self._open: PendingBatch | None = None
        self._packed: deque[PendingBatch] = deque()
        self._window: deque[PendingBatch] = deque()

    # What waits

    @property
    def full(self) -> bool:
        return self.metrics.bytes_waiting >= self._settings.queue_bytes

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.closing:
            raise RuntimeError("the producer is closed")

    def add(self, message: bytes, callback: OnDelivery | None, now: float) -> bool:
        """Take a message; True if that gives a sender something to do."""
        batch = self._open
        size = len(message) + 1
        wake = batch is None
        if batch is not None and batch.bytes + size > self._settings.batch_bytes:
            self._packed.append(batch)
            batch, wake = None, True
        if batch is None:
            batch = self._open = PendingBatch([], 1, [], now)
        batch.messages.append(message)
        batch.bytes += size
        if callback is not None:
            batch.callbacks.append(callback)
        self.metrics.messages += 1
        self.metrics.bytes_waiting += size
        return wake or batch.bytes >= self._settings.batch_bytes

    def finish(self, message: bytes | None, now: float) -> None:
        """Close the stream behind all that was appended, with a last message or without one. Again it does nothing."""
        if self.finishing:
            return
        self.check()
        if message is not None:
            self.add(message, None, now)
        batch = self._open or PendingBatch([], 1, [], now)
        batch.closes = True
        self._open = None
        self._packed.append(batch)
        self.finishing = self.closing = True

    # What to send

    def take(self, now: float) -> PendingBatch | None:
        """A batch to send now. It counts as in flight until `stored` or `failed` is called with it."""
        batch = self._next_retry(now) or self._next_new(now)
        if batch is None:
            return None
        batch.in_flight = True
        batch.is_first = batch is self._window[0]
        batch.attempts += 1
        self.metrics.in_flight += 1
        self.metrics.requests += 1
        self.metrics.retries += batch.attempts > 1
        return batch

    def wait_s(self, now: float) -> float | None:
        """How long until `take` may have something; None if only an event can bring it about."""
        dues = [batch.due for batch in self._window if not batch.in_flight and not batch.out_of_order]
        if self._has_room() and self._open is not None:
            dues.append(self._open.since + self._settings.linger_s)
        return max(0.0, min(dues) - now) if dues else None

    def _next_retry(self, now: float) -> PendingBatch | None:
        for batch in self._window:
            if not batch.in_flight and not batch.out_of_order and batch.due <= now:
                return batch
        return None

    def _next_new(self, now: float) -> PendingBatch | None:
        if not self._has_room():
            return None
        if not self._packed and self._open is not None and self._is_ready(self._open, now):
            self._packed.append(self._open)
            self._open = None
        if not self._packed:
            return None
        batch = self._packed.popleft()
        batch.epoch, batch.seq, batch.since = self.epoch, self._next_seq, now
        self._next_seq += 1
        self._window.append(batch)
        return batch

    def _has_room(self) -> bool:
        # The first batch of an epoch goes alone: it settles whose epoch it is.
        return len(self._window) < (self._settings.in_flight_max if self._epoch_confirmed else 1)

    def _is_ready(self, batch: PendingBatch, now: float) -> bool:
        settings = self._settings
        ready = batch.bytes >= settings.batch_bytes or now - batch.since >= settings.linger_s
        return ready or self.flushing > 0 or self.closing

    # What an answer means

    def stored(self, batch: PendingBatch, sent: Appended) -> Outcome:
        self._end_attempt(batch)
        if batch not in self._window:
            return Outcome()  # given up meanwhile
        if sent.duplicate and not batch.uncertain and not self._epoch_confirmed:
            # Later ones were sent twice by the network: nobody else has numbered batches in this epoch.
            return self._fail(batch, ProducerReusedError(f"batch {batch.seq} of {self.id!r} in epoch {batch.epoch}"))
        return self._settle(batch, sent)

    def _settle(self, batch: PendingBatch, sent: Appended) -> Outcome:
        self._epoch_confirmed = True
        self.stream_closed = self.stream_closed or batch.closes
        self._window.remove(batch)
        if self._window:
            self._window[0].out_of_order = False
        metrics = self.metrics
        metrics.batches_delivered += 1
        metrics.messages_delivered += len(batch.messages)
        metrics.bytes_delivered += batch.bytes - 1
        metrics.bytes_waiting -= batch.bytes - 1
        metrics.duplicates += sent.duplicate
        return self._outcome([batch], sent.offset, duplicate=sent.duplicate)

    def failed(self, batch: PendingBatch, error: HeadwaterError, now: float, chance: float) -> Outcome:
        """Arrange for another attempt, or fail for good and say so to everyone who waits."""
        self._end_attempt(batch)
        if batch not in self._window:
            return Outcome()  # given up meanwhile
        if isinstance(error, SequenceGapError) and not batch.is_first:
            batch.out_of_order = batch is not self._window[0]
            return Outcome()
        if isinstance(error, StreamClosedError) and batch.closes and not batch.messages:
            return self._settle(batch, Appended(""))  # which is what was wanted
        if isinstance(error, StaleEpochError) and self._claim(batch, error):
            return Outcome()
        if not error.retryable or now - batch.since >= self._settings.delivery_timeout_s:
            return self._fail(batch, error)
        batch.uncertain = batch.uncertain or not error.nothing_done
        delay_s = self._retry.delay_s(batch.attempts, chance, error.retry_after_s)
        batch.due = min(now + delay_s, batch.since + self._settings.delivery_timeout_s)
        return Outcome(report=Report(error, batch.attempts, batch.due - now))

    def broken(self, batch: PendingBatch, cause: Exception) -> Outcome:
        """Something else went wrong than a request can: a hook raised, the client was closed, a defect."""
        if batch.in_flight:
            self._end_attempt(batch)
        return self.give_up(ClientError(f"{type(cause).__name__}: {cause}"))

    def give_up(self, error: HeadwaterError) -> Outcome:
        """Fail for good: everything that is not stored yet is told so."""
        waiting = [*self._window, *self._packed, *([self._open] if self._open else [])]
        self.failure = self.failure or error
        return self._fail(waiting[0], error) if waiting else Outcome()

    def _end_attempt(self, batch: PendingBatch) -> None:
        batch.in_flight = False
        self.metrics.in_flight -= 1

    def _claim(self, batch: PendingBatch, error: StaleEpochError) -> bool:
        """Take the next epoch, as long as nothing of this one can have been stored."""
        current = error.epoch
        if self._epoch_confirmed or batch.uncertain or not self._claims_left or current is None:
            return False
        if current >= limits.PRODUCER_INTEGER_MAX:
            return False
        self._claims_left -= 1
        self.epoch = current + 1
        batch.epoch = self.epoch
        return True

    def _fail(self, failed: PendingBatch, error: HeadwaterError) -> Outcome:
        """Give up a batch and all that follows; what precedes it may still arrive."""
        self.failure = self.failure or error
        spared = [batch for batch in self._window if batch.seq < failed.seq]
        given_up = [batch for batch in self._window if batch not in spared]
        given_up += [*self._packed, *([self._open] if self._open else [])]
        self._window = deque(spared)
        self._packed.clear()
        self._open = None
        for batch in given_up:
            self.metrics.messages_failed += len(batch.messages)
            self.metrics.bytes_waiting -= batch.bytes - 1
        return self._outcome(given_up, error=error)

    def _outcome(
        self,
        batches: list[PendingBatch],
        offset: str = "",
        *,
        duplicate: bool = False,
        error: HeadwaterError | None = None,
    ) -> Outcome:
        one = Delivery(1, offset, duplicate, error)
        calls = [(callback, one) for batch in batches for callback in batch.callbacks]
        if self._on_delivery is not None:
            calls += [(self._on_delivery, Delivery(len(p.messages), offset, duplicate, error)) for p in batches]
        return Outcome(sum(len(batch.messages) for batch in batches), calls=calls)


def claimed_epoch(now_s: float, chance: float) -> int:
    """An epoch above all that were claimed before, by this clock or one that agrees with it.

    The milliseconds with a few random digits behind them: two that start at once differ, and the later one of two
    starts has the higher epoch. If the clock was put back, the server says so (403) and the next higher one is taken.
    """
    low = int(chance * (1 << EPOCH_CHANCE_BITS))
    since_ms = max(0, int((now_s - EPOCH_START_S) * 1000))
    return min((since_ms << EPOCH_CHANCE_BITS) | low, limits.PRODUCER_INTEGER_MAX - 1)


def deliver(session: Session, url: str, content_type: str, box: Outbox, batch: PendingBatch) -> Flow[Appended]:
    """One attempt to have a batch stored."""
    producer = ProducerTuple(box.id, batch.epoch, batch.seq)
    body = body_of(content_type, batch.messages) if batch.messages else b""
    request = append_request(url, content_type, body, producer=producer, close=batch.closes)
    reply = yield from attempt(session, request)
    return appended(request, reply, producer)
