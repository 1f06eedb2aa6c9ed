"""The guarantees of subscriptions that their users can check, who know requests, replies, webhooks and wake events.

A cursor is known as a set of positions: the one at which the stream was linked, which is only known to lie between two
tails, and those that were acked. A request without a reply may have been executed, so what it acks is possible.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from headwater.log.offsets import Offset
from headwater.protocol.subscriptions.config import SubscriptionConfig
from headwater.server.subscriptions.records import WakeStream
from tests.fault.oracle import BrokenPromiseError


class Known(Enum):
    """What is known on the existence of a subscription."""

    ABSENT = "absent"
    UNCERTAIN = "uncertain"  # a create or delete is in progress, or has no reply
    PRESENT = "present"


@dataclass
class KnownCursor:
    """Up to where a stream is acked."""

    low: int  # it was linked between these positions
    high: int
    least: int = 0  # it is certainly acked up to here
    acked: Counter[int] = field(default_factory=Counter)  # positions that may have been acked, and how often

    def check(self, position: int, least: int, where: str) -> None:
        """Check a position that was read after `least` was certain."""
        if position < least:
            raise BrokenPromiseError(f"{where}: a cursor moved back from {least} to {position}")
        if not (self.low <= position <= self.high or self.acked[position] > 0):
            raise BrokenPromiseError(f"{where}: a cursor is at {position}, which nobody has acked")
        self.least = max(self.least, position)


@dataclass(eq=False)
class KnownWake:
    """A wake that a worker has received."""

    id: str
    generation: int
    token: str
    streams: tuple[WakeStream, ...]
    ending: int = 0  # requests that end it, without a reply or with success
    extending: int = 0  # requests that extend its lease, without a reply
    is_over: bool = False
    is_leased: bool = True  # otherwise it lasts until it is done
    lease_low_ms: float = 0.0  # the lease ends between these times
    lease_high_ms: float = 0.0
    next_attempt_ms: int = 0  # the server has shown this time of a retry
    posts: int = 0  # webhooks under way

    def is_surely_valid(self, now_ms: int) -> bool:
        if self.ending or self.is_over:
            return False
        return now_ms < self.lease_low_ms if self.is_leased else not self.extending


@dataclass(eq=False)
class KnownSubscription:
    """One life of a subscription."""

    id: str
    config: SubscriptionConfig
    life: str | None = None
    known: Known = Known.UNCERTAIN
    members: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)  # members that are added or removed, or may have been
    changed_at: dict[str, int] = field(default_factory=dict)  # the generation at which a link was changed
    cursors: dict[tuple[str, int], KnownCursor] = field(default_factory=dict)  # by path and id of the stream
    generation: int = 0  # the largest one that was seen
    wake_ids: dict[int, str] = field(default_factory=dict)
    wake: KnownWake | None = None  # the newest one that a worker has received
    claims: int = 0  # in progress
    is_claim_lost: bool = False  # one has no reply

    def links(self, path: str) -> bool:
        return path in self.members or (self.config.pattern is not None and matches(self.config.pattern, path))

    def has_glob(self, path: str) -> bool:
        return self.config.pattern is not None and matches(self.config.pattern, path)

    def cursor(self, path: str, stream_id: int, start: int) -> KnownCursor:
        """A stream of which nothing is known was created after the subscription, and is unread."""
        return self.cursors.setdefault((path, stream_id), KnownCursor(start, start, start))

    def forget(self, path: str) -> None:
        """A link has ended, and the next one has another cursor. Acks that are on their way may be applied to it."""
        for (linked, _), cursor in self.cursors.items():
            if linked == path:
                cursor.low, cursor.high, cursor.least = 0, 0, 0
        self.changed_at[path] = self.generation + 1

    def link(self, path: str, stream_id: int, low: int, high: int) -> None:
        """A stream was linked at its tail, which was between two positions."""
        cursor = self.cursor(path, stream_id, low)
        cursor.low, cursor.high, cursor.least = low, high, low

    def see(self, wake: KnownWake, latest_ms: int) -> None:
        """A worker receives a wake: the first of its generation, and the one before is over."""
        where = f"subscription {self.id}, generation {wake.generation}"
        if self.wake_ids.setdefault(wake.generation, wake.id) != wake.id:
            raise BrokenPromiseError(f"{where}: two wakes have this generation")
        before = self.wake
        if before is not None and before.id != wake.id:
            if wake.generation <= before.generation:
                raise BrokenPromiseError(f"{where}: it was delivered after generation {before.generation}")
            if before.is_surely_valid(latest_ms):
                raise BrokenPromiseError(f"{where}: generation {before.generation} is still in flight")
        self.generation = max(self.generation, wake.generation)

    def check_streams(self, wake: KnownWake, wake_streams: set[str]) -> None:
        """All streams of a wake are linked and pending."""
        where = f"subscription {self.id}, generation {wake.generation}"
        if not wake.streams:
            raise BrokenPromiseError(f"{where}: nothing is pending")
        for stream in wake.streams:
            position = 0 if stream.acked is None else stream.acked.position
            if stream.tail.position <= position:
                raise BrokenPromiseError(f"{where}: {stream.path} is not pending")
            if stream.path in wake_streams and stream.path not in self.members:
                raise BrokenPromiseError(f"{where}: {stream.path} is a wake stream")
            if self.can_check(stream.path, wake.generation) and not self.links(stream.path):
                raise BrokenPromiseError(f"{where}: {stream.path} is not linked")

    def can_check(self, path: str, generation: int) -> bool:
        """Whether a link has been the same since before a wake began."""
        return path not in self.changing and self.changed_at.get(path, 0) < generation


def matches(pattern: str, path: str) -> bool:
    """A slow matcher, independent of that of the server."""

    def at(segments: list[str], names: list[str]) -> bool:
        if not segments:
            return not names
        if segments[0] == "**":
            return any(at(segments[1:], names[skip:]) for skip in range(len(names) + 1))
        return bool(names) and segments[0] in ("*", names[0]) and at(segments[1:], names[1:])

    return at(pattern.split("/"), path.split("/"))


def position_of(offset: Offset | None) -> int:
    return 0 if offset is None else offset.position
