"""The logic of the idempotent producer, without I/O: what to send when, and how to handle responses.

Theory of operation
===================

Messages are queued in order and packed into batches, by size or after `linger_s`. Batches are numbered, and up to
`in_flight_max` of them, the window, are sent at a time. A batch is retried with the same number until there is a
response, so the server stores it once and in order. A non-retryable error fails the batch and all later ones, so that
there is never a gap.

The state of a producer:

    state      meaning                                                                    accepts messages
    ---------  -------------------------------------------------------------------------  ----------------
    OPEN       messages are queued and sent                                               yes
    CLOSING    `close` was called: what is queued is sent                                 no
    FINISHING  `close_stream` was called: the same, and the last batch closes the stream  no
    FINISHED   the stream is closed, and everything was stored before that                no
    FAILED     a batch failed for good; batches before it may still be stored             no
    STOPPED    nothing is sent any more                                                   no

The state of a batch:

    state      meaning                                                                   in the window
    ---------  ------------------------------------------------------------------------  -------------
    QUEUED     it has no number yet, and messages may be added to the newest one         no
    IN_FLIGHT  a request with it is in progress                                          yes
    WAITING    it is sent again when it is due                                           yes
    HELD       it arrived before its predecessor and was refused (409): it is sent       yes
               again when its predecessor is stored
    STORED     the server has stored it                                                  no
    FAILED     it was refused or given up                                                no
    ABANDONED  it was given up while a request was in progress, whose result is ignored  no

Independent of the state of a batch are: whether an attempt may have been stored although its response was lost
(`uncertain`), whether all its predecessors were stored when it was last sent (`is_first`), and whether the stream is
closed with it (`closes`).

The first batch of an epoch is sent alone: its response shows whether the epoch is free. Once something was stored in an
epoch, it is confirmed: it belongs to this producer.

`Outbox._move` and `PendingBatch.move` are the only ways from one state to another. An event that the tables do not list
for a state is a defect and raises `ImpossibleTransitionError`.
"""

from __future__ import annotations

import enum
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
from headwater.client.flows import AppendResult, append_request, appended
from headwater.client.session import Retry, Session, attempt, may_succeed
from headwater.errors import (
    ClientError,
    HeadwaterError,
    ProducerReusedError,
    SequenceGapError,
    StaleEpochError,
    StreamClosedError,
)
from headwater.log.producers import ProducerTuple
from headwater.transitions import Transitions, next_state

log = logging.getLogger(__name__)

EPOCH_CHANCE_BITS = 12
EPOCH_START_S = 1_704_067_200  # 2024-01-01: milliseconds and 12 bits from then fit into an epoch until 2093


class DeliveryReport(msgspec.Struct, frozen=True):
    """The outcome of messages: stored, with `offset` as the tail, or failed with `error`."""

    count: int
    offset: str = ""
    duplicate: bool = False
    error: HeadwaterError | None = None


OnDelivery: TypeAlias = Callable[[DeliveryReport], Any]


class BatchOutcome(msgspec.Struct, frozen=True):
    """The outcome of a number of messages, and the callbacks to call with it."""

    messages: int = 0
    report: Report | None = None  # of an error that will be retried
    calls: list[tuple[OnDelivery, DeliveryReport]] = []

    def notify(self) -> None:
        for callback, delivery in self.calls:
            try:
                callback(delivery)
            except Exception:  # an error in a callback must not stop the producer
                log.exception("a delivery callback failed")


class ProducerIdentity(msgspec.Struct, frozen=True):
    """The id and epoch by which the server knows a producer."""

    id: str
    epoch: int
    claiming: bool


def identity(producer_id: str | None, epoch: int | None, *, auto_claim: bool) -> ProducerIdentity:
    """Without an id, a new producer. With an id, its next session, with a higher epoch that is given or claimed."""
    if epoch is not None and not 0 <= epoch <= limits.PRODUCER_INTEGER_MAX:
        raise ValueError(f"epoch must be from 0 to 2^53-1, got {epoch}")
    if producer_id is None:
        return ProducerIdentity(uuid.uuid4().hex, epoch or 0, auto_claim)
    if not (producer_id and producer_id.isascii() and producer_id.isprintable()):
        raise ValueError(f"a producer's id must be printable ASCII, got {producer_id!r}")
    if epoch is None and not auto_claim:
        raise ValueError(
            "a producer with an id of its own needs an epoch higher than that of its last run, or auto_claim=True: "
            "in an epoch used before, the server would treat new messages as duplicates"
        )
    return ProducerIdentity(
        producer_id, claimed_epoch(time.time(), random.random()) if epoch is None else epoch, auto_claim
    )


class ProducerMetrics(msgspec.Struct):
    """Counts since the producer was created, and what is queued and in flight now."""

    messages: int = 0
    messages_delivered: int = 0
    messages_failed: int = 0
    bytes_delivered: int = 0
    batches_delivered: int = 0
    requests: int = 0
    retries: int = 0
    duplicates: int = 0  # batches that the server already had
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


class OutboxState(enum.Enum):
    OPEN = enum.auto()
    CLOSING = enum.auto()
    FINISHING = enum.auto()
    FINISHED = enum.auto()
    FAILED = enum.auto()
    STOPPED = enum.auto()


class ProducerEvent(enum.Enum):
    CLOSE = enum.auto()  # accept no more messages
    FINISH = enum.auto()  # the same, and close the stream after those that are queued
    STREAM_CLOSED = enum.auto()  # the batch that closes the stream is stored
    FAIL = enum.auto()  # a batch failed for good
    STOP = enum.auto()  # send nothing any more


PRODUCER_TRANSITIONS: Transitions[OutboxState, ProducerEvent] = {
    OutboxState.OPEN: {
        ProducerEvent.CLOSE: OutboxState.CLOSING,
        ProducerEvent.FINISH: OutboxState.FINISHING,
        ProducerEvent.FAIL: OutboxState.FAILED,
    },
    OutboxState.CLOSING: {
        ProducerEvent.CLOSE: OutboxState.CLOSING,
        ProducerEvent.FAIL: OutboxState.FAILED,
        ProducerEvent.STOP: OutboxState.STOPPED,
    },
    OutboxState.FINISHING: {
        ProducerEvent.CLOSE: OutboxState.FINISHING,
        ProducerEvent.STREAM_CLOSED: OutboxState.FINISHED,
        ProducerEvent.FAIL: OutboxState.FAILED,
        ProducerEvent.STOP: OutboxState.STOPPED,
    },
    OutboxState.FINISHED: {
        ProducerEvent.CLOSE: OutboxState.FINISHED,
        ProducerEvent.FAIL: OutboxState.FAILED,  # the user gave up while delivery callbacks were running
        ProducerEvent.STOP: OutboxState.FINISHED,
    },
    OutboxState.FAILED: {
        ProducerEvent.CLOSE: OutboxState.FAILED,
        ProducerEvent.FAIL: OutboxState.FAILED,  # a batch before the one that failed first
        ProducerEvent.STOP: OutboxState.STOPPED,
    },
    OutboxState.STOPPED: {
        ProducerEvent.CLOSE: OutboxState.STOPPED,
        ProducerEvent.STREAM_CLOSED: OutboxState.STOPPED,  # by a request that was in progress
        ProducerEvent.FAIL: OutboxState.STOPPED,
        ProducerEvent.STOP: OutboxState.STOPPED,
    },
}


class BatchState(enum.Enum):
    QUEUED = enum.auto()
    IN_FLIGHT = enum.auto()
    WAITING = enum.auto()
    HELD = enum.auto()
    STORED = enum.auto()
    FAILED = enum.auto()
    ABANDONED = enum.auto()


class BatchEvent(enum.Enum):
    SEND = enum.auto()  # a request begins
    STORED = enum.auto()  # the response says that it is stored
    REFUSED = enum.auto()  # the response is an error for good
    RETRY = enum.auto()  # the request failed, and is repeated
    EARLY = enum.auto()  # the response says that its predecessor is missing
    NEXT = enum.auto()  # its predecessor is stored
    GIVE_UP = enum.auto()  # another batch failed, or the user gave up
    ANSWERED = enum.auto()  # the request has ended, and its result is ignored


BATCH_TRANSITIONS: Transitions[BatchState, BatchEvent] = {
    BatchState.QUEUED: {
        BatchEvent.SEND: BatchState.IN_FLIGHT,
        BatchEvent.GIVE_UP: BatchState.FAILED,
    },
    BatchState.IN_FLIGHT: {
        BatchEvent.STORED: BatchState.STORED,
        BatchEvent.REFUSED: BatchState.FAILED,
        BatchEvent.RETRY: BatchState.WAITING,
        BatchEvent.EARLY: BatchState.HELD,
        BatchEvent.NEXT: BatchState.IN_FLIGHT,
        BatchEvent.GIVE_UP: BatchState.ABANDONED,
    },
    BatchState.WAITING: {
        BatchEvent.SEND: BatchState.IN_FLIGHT,
        BatchEvent.NEXT: BatchState.WAITING,
        BatchEvent.GIVE_UP: BatchState.FAILED,
    },
    BatchState.HELD: {
        BatchEvent.NEXT: BatchState.WAITING,
        BatchEvent.GIVE_UP: BatchState.FAILED,
    },
    BatchState.STORED: {},
    BatchState.FAILED: {},
    BatchState.ABANDONED: {
        BatchEvent.ANSWERED: BatchState.FAILED,
    },
}


class PendingBatch(msgspec.Struct, eq=False):
    """A batch that is not stored yet: its number and its history."""

    messages: list[bytes]
    bytes: int
    callbacks: list[OnDelivery]
    since: float
    epoch: int = 0
    seq: int = -1
    attempts: int = 0
    state: BatchState = BatchState.QUEUED
    uncertain: bool = False
    is_first: bool = False
    closes: bool = False
    due: float = 0.0

    def move(self, event: BatchEvent) -> None:
        self.state = next_state(BATCH_TRANSITIONS, self.state, event)


class EpochInUse(msgspec.Struct):
    """The epoch of a producer: the number of its next batch, and how often a higher epoch may be claimed."""

    number: int
    claims_left: int
    confirmed: bool = False
    next_seq: int = 0

    def may_claim(self, current: int | None) -> bool:
        """Whether the epoch after the current one of the server can be claimed."""
        if self.confirmed or not self.claims_left or current is None:
            return False
        return current < limits.PRODUCER_INTEGER_MAX

    def claim(self, current: int) -> None:
        self.claims_left -= 1
        self.number = current + 1


class Outbox:
    """The state of a producer. Time and random numbers are arguments; the shells do the I/O."""

    def __init__(
        self,
        identity: ProducerIdentity,
        settings: ProducerSettings,
        retry: Retry,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.id = identity.id
        self.metrics = ProducerMetrics()
        self.state = OutboxState.OPEN
        self.failure: HeadwaterError | None = None
        self.flushing = 0  # calls of `flush` that wait
        self.settled = 0  # messages that are stored or failed, and whose callbacks were called
        self._settings = settings
        self._retry = retry
        self._on_delivery = on_delivery
        self._epoch = EpochInUse(identity.epoch, limits.PRODUCER_CLAIMS_MAX if identity.claiming else 0)
        self._open: PendingBatch | None = None
        self._packed: deque[PendingBatch] = deque()
        self._window: deque[PendingBatch] = deque()

    def _move(self, event: ProducerEvent) -> None:
        self.state = next_state(PRODUCER_TRANSITIONS, self.state, event)

    @property
    def epoch(self) -> int:
        return self._epoch.number

    @property
    def accepts(self) -> bool:
        """Whether messages can be added."""
        return self.state is OutboxState.OPEN

    @property
    def stopped(self) -> bool:
        """Whether senders end."""
        return self.state in (OutboxState.STOPPED, OutboxState.FINISHED)

    def close(self) -> None:
        """Accept no more messages. What is queued is sent."""
        self._move(ProducerEvent.CLOSE)

    def stop(self) -> None:
        """Send nothing any more."""
        self._move(ProducerEvent.STOP)

    def check_finished(self) -> None:
        """After `finish`: raise an error if the producer was stopped before the stream was closed."""
        if self.state is OutboxState.STOPPED and self.failure is None:
            raise ClientError("the producer was closed before it could close the stream; close the stream itself")

    # The queue

    @property
    def full(self) -> bool:
        return self.metrics.bytes_waiting >= self._settings.queue_bytes

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.accepts:
            raise RuntimeError("the producer is closed")

    def add(self, message: bytes, callback: OnDelivery | None, now: float) -> bool:
        """Queue a message. True if a sender now has something to do."""
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
        """Close the stream after all queued messages, with a last message if given. A second call has no effect."""
        if self.state in (OutboxState.FINISHING, OutboxState.FINISHED):
            return
        self.check()
        if message is not None:
            self.add(message, None, now)
        batch = self._open or PendingBatch([], 1, [], now)
        batch.closes = True
        self._open = None
        self._packed.append(batch)
        self._move(ProducerEvent.FINISH)

    # Sending

    def take(self, now: float) -> PendingBatch | None:
        """Return a batch to send now. It counts as in flight until `stored` or `failed` is called with it."""
        batch = self._next_retry(now) or self._next_new(now)
        if batch is None:
            return None
        batch.move(BatchEvent.SEND)
        batch.is_first = batch is self._window[0]
        batch.attempts += 1
        self.metrics.in_flight += 1
        self.metrics.requests += 1
        self.metrics.retries += batch.attempts > 1
        return batch

    def wait_s(self, now: float) -> float | None:
        """How long to wait until `take` may return a batch; None if that needs another event first."""
        dues = [batch.due for batch in self._window if batch.state is BatchState.WAITING]
        if self._has_room() and self._open is not None:
            dues.append(self._open.since + self._settings.linger_s)
        return max(0.0, min(dues) - now) if dues else None

    def _next_retry(self, now: float) -> PendingBatch | None:
        for batch in self._window:
            if batch.state is BatchState.WAITING and batch.due <= now:
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
        batch.epoch, batch.seq, batch.since = self._epoch.number, self._epoch.next_seq, now
        self._epoch.next_seq += 1
        self._window.append(batch)
        return batch

    def _has_room(self) -> bool:
        return len(self._window) < (self._settings.in_flight_max if self._epoch.confirmed else 1)

    def _is_ready(self, batch: PendingBatch, now: float) -> bool:
        settings = self._settings
        ready = batch.bytes >= settings.batch_bytes or now - batch.since >= settings.linger_s
        return ready or self.flushing > 0 or not self.accepts

    # Responses

    def stored(self, batch: PendingBatch, sent: AppendResult) -> BatchOutcome:
        if self._is_answer_ignored(batch):
            return BatchOutcome()
        if sent.duplicate and not batch.uncertain and not self._epoch.confirmed:
            # Once the epoch is confirmed, a duplicate is a retry of ours: no other producer uses this epoch.
            return self._refuse(batch, ProducerReusedError(f"batch {batch.seq} of {self.id!r} in epoch {batch.epoch}"))
        return self._settle(batch, sent)

    def _is_answer_ignored(self, batch: PendingBatch) -> bool:
        """Count the end of a request. Returns whether its batch was given up meanwhile."""
        self.metrics.in_flight -= 1
        if batch.state is not BatchState.ABANDONED:
            return False
        batch.move(BatchEvent.ANSWERED)
        return True

    def _settle(self, batch: PendingBatch, sent: AppendResult) -> BatchOutcome:
        batch.move(BatchEvent.STORED)
        self._epoch.confirmed = True
        if batch.closes:
            self._move(ProducerEvent.STREAM_CLOSED)
        self._window.remove(batch)
        if self._window:
            self._window[0].move(BatchEvent.NEXT)
        metrics = self.metrics
        metrics.batches_delivered += 1
        metrics.messages_delivered += len(batch.messages)
        metrics.bytes_delivered += batch.bytes - 1
        metrics.bytes_waiting -= batch.bytes - 1
        metrics.duplicates += sent.duplicate
        return self._outcome([batch], sent.offset, duplicate=sent.duplicate)

    def failed(self, batch: PendingBatch, error: HeadwaterError, now: float, chance: float) -> BatchOutcome:
        """Schedule another attempt, or fail permanently and notify the callbacks."""
        if self._is_answer_ignored(batch):
            return BatchOutcome()
        if isinstance(error, SequenceGapError) and not batch.is_first:
            batch.move(BatchEvent.RETRY if batch is self._window[0] else BatchEvent.EARLY)
            return BatchOutcome()
        if isinstance(error, StreamClosedError) and batch.closes and not batch.messages:
            return self._settle(batch, AppendResult(""))  # the stream is closed, as requested
        if isinstance(error, StaleEpochError) and self._claim(batch, error):
            return BatchOutcome()
        if not may_succeed(error) or now - batch.since >= self._settings.delivery_timeout_s:
            return self._refuse(batch, error)
        batch.move(BatchEvent.RETRY)
        batch.uncertain = batch.uncertain or not error.nothing_done
        delay_s = self._retry.delay_s(batch.attempts, chance, error.retry_after_s)
        batch.due = min(now + delay_s, batch.since + self._settings.delivery_timeout_s)
        return BatchOutcome(report=Report(error, batch.attempts, batch.due - now))

    def broken(self, batch: PendingBatch, cause: Exception) -> BatchOutcome:
        """Handle an error that is not one of a request: a hook raised, the client was closed, or there is a bug."""
        if batch.state in (BatchState.IN_FLIGHT, BatchState.ABANDONED) and not self._is_answer_ignored(batch):
            batch.move(BatchEvent.RETRY)
        return self.give_up(ClientError(f"{type(cause).__name__}: {cause}"))

    def give_up(self, error: HeadwaterError) -> BatchOutcome:
        """Fail permanently: all messages that are not stored yet fail with this error."""
        return self._fail(list(self._window), error)

    def _claim(self, batch: PendingBatch, error: StaleEpochError) -> bool:
        """Claim the next epoch, provided that nothing can have been stored in this one."""
        if batch.uncertain or error.epoch is None or not self._epoch.may_claim(error.epoch):
            return False
        self._epoch.claim(error.epoch)
        batch.epoch = self._epoch.number
        batch.move(BatchEvent.RETRY)
        return True

    def _refuse(self, refused: PendingBatch, error: HeadwaterError) -> BatchOutcome:
        """Fail a batch whose request got a final error, and all later ones. Earlier batches may still be stored."""
        refused.move(BatchEvent.REFUSED)
        return self._fail([batch for batch in self._window if batch.seq >= refused.seq], error)

    def _fail(self, last: list[PendingBatch], error: HeadwaterError) -> BatchOutcome:
        """Fail the last batches of the window and all that are queued."""
        self.failure = self.failure or error
        self._move(ProducerEvent.FAIL)
        batches = [*last, *self._packed, *([self._open] if self._open else [])]
        self._window = deque(batch for batch in self._window if batch not in last)
        self._packed.clear()
        self._open = None
        for batch in batches:
            if batch.state is not BatchState.FAILED:
                batch.move(BatchEvent.GIVE_UP)
            self.metrics.messages_failed += len(batch.messages)
            self.metrics.bytes_waiting -= batch.bytes - 1
        return self._outcome(batches, error=error)

    def _outcome(
        self,
        batches: list[PendingBatch],
        offset: str = "",
        *,
        duplicate: bool = False,
        error: HeadwaterError | None = None,
    ) -> BatchOutcome:
        one = DeliveryReport(1, offset, duplicate, error)
        calls = [(callback, one) for batch in batches for callback in batch.callbacks]
        if self._on_delivery is not None:
            calls += [(self._on_delivery, DeliveryReport(len(p.messages), offset, duplicate, error)) for p in batches]
        return BatchOutcome(sum(len(batch.messages) for batch in batches), calls=calls)


def claimed_epoch(now_s: float, chance: float) -> int:
    """Return an epoch that is higher than all epochs that were claimed before, if the clocks agree.

    It is the time in milliseconds followed by random bits, so that two producers that start at the same time differ
    and a later start has a higher epoch. If the clock was set back, the server returns 403 and the producer claims the
    next higher epoch.
    """
    low = int(chance * (1 << EPOCH_CHANCE_BITS))
    since_ms = max(0, int((now_s - EPOCH_START_S) * 1000))
    return min((since_ms << EPOCH_CHANCE_BITS) | low, limits.PRODUCER_INTEGER_MAX - 1)


def deliver(session: Session, url: str, content_type: str, box: Outbox, batch: PendingBatch) -> Flow[AppendResult]:
    """Send a batch once."""
    producer = ProducerTuple(box.id, batch.epoch, batch.seq)
    body = body_of(content_type, batch.messages) if batch.messages else b""
    request = append_request(url, content_type, body, producer=producer, close=batch.closes)
    reply = yield from attempt(session, request)
    return appended(request, reply, producer)
