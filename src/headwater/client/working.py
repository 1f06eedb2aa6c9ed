"""What a worker of subscriptions knows and decides: which subscription to claim next, and how long its lease lasts.

Theory of operation
===================

A worker follows a wake stream. A wake event names a subscription that has pending events. All workers see it, try to
claim the subscription, and one of them gets it. The worker that has the claim reads the pending events, calls a
function with them, acks them, and sends heartbeats meanwhile. The server writes another wake event when a wake ends and
events are left: because more were appended, because the worker released it, or because its lease ended. So a worker
that did not get a claim just waits for the next wake event.

    what happened            when the subscription is claimed again by this worker
    -----------------------  ------------------------------------------------------------------
    a wake event             after a random wait that grows with the share of claims that were lost
    all done, more pending   after the other subscriptions that are due
    claimed by another       with the next wake event
    nothing pending          with the next wake event
    the function failed      after a backoff, even if wake events come before
    the lease was lost       with the next wake event

An event of a generation that was claimed, by this worker or another one, is stale and ignored. The generations of a
subscription rise in its wake stream. If one does not, the subscription was deleted and created again, or the server
repeats an event that nobody reacted to, and the event counts. In addition to wake events, a worker looks for
pending events when it starts and about once a minute.
"""

from __future__ import annotations

import heapq
import os
import socket
import uuid
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.errors import HeadwaterError
from headwater.positions import Position

T = TypeVar("T")

FAILED = Backoff(limits.WORK_FAILED_FIRST_S, limits.WORK_FAILED_MAX_S, jitter=0.5)


class FunctionFailedError(Exception):
    """The function of a worker raised an error, which is the cause of this one."""


class WakeEvent(msgspec.Struct, frozen=True, tag_field="type", tag="wake"):
    """A message of a wake stream."""

    subscription_id: str
    generation: int
    stream: str = ""
    ts: int = 0


class LeaseClock:
    """How long a worker can rely on its lease, by its own clock: the time of the lease after the last request that
    extended it was sent. The server counts from when it received the request, which is later."""

    def __init__(self, lease_s: float, claimed_s: float) -> None:
        self.lease_s = lease_s
        self._extended_s = claimed_s
        self._tried_s = claimed_s
        self.is_fenced = False

    def extend(self, sent_s: float) -> None:
        """Note that a request that was sent at this time has extended the lease."""
        self._extended_s = max(self._extended_s, sent_s)

    def try_again(self, now_s: float) -> None:
        """Note a heartbeat that failed: the next one comes sooner than after a success."""
        self._tried_s = now_s

    def is_lost(self, now_s: float) -> bool:
        """Whether another worker may have the subscription."""
        return self.is_fenced or now_s >= self._extended_s + self.lease_s

    def heartbeat_s(self) -> float:
        """When the next heartbeat is due."""
        regular_s = self._extended_s + self.lease_s / limits.HEARTBEATS_PER_LEASE
        retry_s = self._tried_s + self.lease_s / limits.HEARTBEATS_PER_LEASE / 4
        return max(regular_s, retry_s)


class WorkBatch(msgspec.Struct, Generic[T], frozen=True):
    """Messages of one stream that a worker has to process, and the position after them.

    `generation` increases with every wake of the subscription. A system that keeps the largest generation it has seen
    and refuses smaller ones is protected from a worker that was paused and lost its lease without noticing.
    """

    subscription: str
    stream: str
    messages: list[T]
    position: Position
    generation: int
    is_last: bool = False  # whether nothing else was pending when the subscription was claimed

    @property
    def offset(self) -> str:
        """The offset that is acked when the messages are processed."""
        return self.position.offset


WorkOutcome = Literal["claimed", "done", "handed over", "failed", "lease lost", "refused"]


class WorkReport(msgspec.Struct, frozen=True):
    """Something that happened to a worker: it has claimed a subscription, or ended a claim in one of these ways.

    "done": all pending events were processed. "handed over": the worker stops and released the claim. "failed": the
    function or a request raised `error`, and the worker will claim again after `delay_s`. "lease lost": another worker
    may have the subscription. "refused": the subscription cannot be claimed by this worker, and is left out.
    """

    outcome: WorkOutcome
    subscription: str
    worker: str
    generation: int = 0
    messages: int = 0
    error: BaseException | None = None
    delay_s: float = 0.0

    def __str__(self) -> str:
        text = f"{self.subscription}: {self.outcome}"
        if self.outcome not in ("claimed", "refused"):
            text += f", {self.messages} messages processed"
        if self.error is not None:
            error = self.error
            shown = str(error) if isinstance(error, HeadwaterError) else f"{type(error).__name__}: {error}"
            text += f": {shown}"
        return f"{text}; again in {self.delay_s:.1f} s" if self.delay_s else text


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker."""

    name: str
    per: Literal["batch", "wake"]
    message_type: Any
    on_report: Callable[[WorkReport], Any] | None = None

    def __post_init__(self) -> None:
        if self.per not in ("batch", "wake"):
            raise ValueError(f"per is 'batch' or 'wake', not {self.per!r}")
        if not self.name:
            raise ValueError("a worker needs a name")


def worker_name() -> str:
    """A name that no other worker has: the machine, the process and a random part."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class _Known(msgspec.Struct):
    """What a worker knows about a subscription."""

    event_generation: int = -1  # of its last event in the wake stream
    claimed_generation: int = -1  # the last one that was claimed, by this worker or another
    not_before_s: float = 0.0
    due_s: float | None = None  # when it is to be claimed; None if not
    streak: Streak = msgspec.field(default_factory=lambda: Streak(FAILED))


class Agenda:
    """The subscriptions that a worker is to claim, and when. Times are those of the caller's clock."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._known: dict[str, _Known] = {}
        self._queue: list[tuple[float, int, str]] = []  # by time; entries that were moved are left and skipped
        self._count = 0
        self.contention = 0.0  # the share of claims that were lost to other workers, of late

    def wake(self, event: WakeEvent, now_s: float) -> None:
        """Note a wake event."""
        known = self._of(event.subscription_id)
        if event.generation <= known.event_generation:  # created again, or the server repeats an event
            known.claimed_generation = -1
        known.event_generation = event.generation
        if event.generation > known.claimed_generation:
            jitter_s = limits.WORK_JITTER_MAX_S * self.contention**2 * self._chance()
            self._schedule(event.subscription_id, now_s + jitter_s)

    def add(self, subscription: str, now_s: float) -> None:
        """Claim a subscription as soon as possible: it may have pending events."""
        self._schedule(subscription, now_s)

    def take(self, now_s: float) -> str | None:
        """The subscription to claim now."""
        while self._queue and self._queue[0][0] <= now_s:
            due_s, _, subscription = heapq.heappop(self._queue)
            known = self._known.get(subscription)
            if known is not None and known.due_s == due_s:
                known.due_s = None
                return subscription
        return None

    def wait_s(self, now_s: float) -> float | None:
        """How long to wait for the next subscription to claim; None if there is none."""
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None

    def claimed(self, subscription: str, generation: int) -> None:
        """Note that this worker has claimed a subscription."""
        self._of(subscription).claimed_generation = generation
        self._count_claim(0.0)

    def taken(self, subscription: str, generation: int | None) -> None:
        """Note that another worker has a subscription."""
        known = self._of(subscription)
        known.claimed_generation = known.event_generation if generation is None else generation
        self._count_claim(1.0)

    def done(self, subscription: str, now_s: float, *, again: bool) -> None:
        """Note that a wake was processed; `again` if there may be more."""
        self._of(subscription).streak.reset()
        if again:
            self._schedule(subscription, now_s)

    def failed(self, subscription: str, now_s: float) -> float:
        """Note that a claim or its processing failed. Returns the time after which it is tried again."""
        known = self._of(subscription)
        delay_s = known.streak.fail(self._chance())
        known.not_before_s = now_s + delay_s
        known.due_s = None
        self._schedule(subscription, known.not_before_s)
        return delay_s

    def lost(self, subscription: str) -> None:
        """Note that the claim of this worker is over. Every event counts then: the subscription may be another one."""
        self._of(subscription).claimed_generation = -1

    def forget(self, subscription: str) -> None:
        """Leave out a subscription until it wakes again."""
        self._known.pop(subscription, None)

    def _of(self, subscription: str) -> _Known:
        known = self._known.get(subscription)
        if known is None:
            if len(self._known) >= limits.WORK_SUBSCRIPTIONS_MAX:
                del self._known[next(iter(self._known))]
            known = self._known[subscription] = _Known()
        return known

    def _schedule(self, subscription: str, due_s: float) -> None:
        """Claim at this time, or earlier if that was planned, but not before the backoff has ended."""
        known = self._of(subscription)
        due_s = max(due_s, known.not_before_s)
        if known.due_s is None or due_s < known.due_s:
            known.due_s = due_s
            self._count += 1
            heapq.heappush(self._queue, (due_s, self._count, subscription))

    def _count_claim(self, lost: float) -> None:
        self.contention += limits.WORK_CONTENTION_WEIGHT * (lost - self.contention)
