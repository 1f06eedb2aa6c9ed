"""The knowledge of all clients of a simulated server, across its lives."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from headwater.engine.messages import VisibleStream
from headwater.protocol.tables.paths import log_path
from tests.fault.oracle import BrokenPromiseError, JointWrite, KnownDocument, KnownStream, Names
from tests.fault.sim_disk import SimDisk

MIRROR = log_path("mirror")
TABLE_FORK = log_path("fork")
STREAMS = ("a", "b", "c", "json", "fork1", "fork2", "fork3")
PATHS = (*STREAMS, log_path("t1"), log_path("t2"), TABLE_FORK, MIRROR)
KEYS = ("d0", "d1", "d2")


@dataclass
class Writer:
    """An idempotent producer that retries until it has a reply."""

    generation: int
    seq: int = 0
    unacknowledged: int | None = None


class Unseen(NamedTuple):
    """A stream whose creation had no reply, and which was not there after the crash. It may have been created, and may
    have expired without a durable deletion. Then it exists again if the clock is set back."""

    asked_ms: int
    until_ms: int  # the latest time of its creation
    absent_ms: int

    def may_be(self, stream: VisibleStream) -> bool:
        is_expired = stream.deadline_ms is not None and stream.deadline_ms <= self.absent_ms
        return is_expired and self.asked_ms <= stream.created_ms <= self.until_ms


class World:
    """The knowledge of all clients, across the lives of the server."""

    def __init__(
        self, rng: random.Random, disk: SimDisk, paths: tuple[str, ...] = PATHS, conditional: float = 0.0
    ) -> None:
        self.paths = paths
        self.conditional = conditional  # share of the appends that expect a tail
        self.random = rng
        self.staged = itertools.count()  # numbers of streams that are composed
        self.disk = disk
        self.names = Names()
        self.streams: dict[str, KnownStream] = {}
        self.expired: dict[str, KnownStream] = {}  # not found since; may exist again if the clock is set back
        self.uncertain: dict[str, int] = {}  # paths with a create in progress at a crash, and when it was asked for
        self.unseen: dict[str, list[Unseen]] = {}  # by path: what such creates may have made
        self.requests: Counter[str] = Counter()  # in progress, by path
        self.documents = {key: KnownDocument(key) for key in KEYS}
        self.joint: list[JointWrite] = []
        self.writers: dict[str, Writer] = {}
        self.generation = 0
        self.number = 0
        self.latest_ms = 0  # the latest time of any life

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def end_life(self, now_ms: int) -> None:
        """End a life. Requests in progress may have been executed at any time until now."""
        self.latest_ms = max(self.latest_ms, now_ms)
        for known in self.streams.values():
            if self.requests[known.path] and known.life is not None:
                known.life.used_ms = max(known.life.used_ms, now_ms)
        self.requests.clear()

    def request_ended(self, known: KnownStream, now_ms: int) -> None:
        """A request may have renewed the stream it was sent to, or one that took its place while it waited."""
        self.requests[known.path] -= 1
        current = self.streams.get(known.path)
        if current is not None and current.life is not None:
            current.life.used_ms = max(current.life.used_ms, self.latest_ms, now_ms)

    def note_absent(self, path: str, now_ms: int) -> None:
        """There is no stream at a path at the start of a life."""
        if path in self.uncertain:
            self.unseen.setdefault(path, []).append(Unseen(self.uncertain[path], self.latest_ms, now_ms))

    def may_exist(self, stream: VisibleStream) -> bool:
        """Whether a stream that no client knows may have been created at its path."""
        return stream.path in self.uncertain or any(one.may_be(stream) for one in self.unseen.get(stream.path, ()))

    def has_expired(self, known: KnownStream, now_ms: int) -> bool:
        """Whether a stream certainly has expired, and no request in progress may renew it."""
        return known.life is not None and not self.requests[known.path] and known.life.has_ended(now_ms)

    def lose(self, known: KnownStream, now_ms: int) -> None:
        """A stream was not found."""
        if self.streams.get(known.path) is not known:
            return
        self.latest_ms = max(self.latest_ms, now_ms)
        if known.must_exist(self.latest_ms):
            raise BrokenPromiseError(f"{known.path} was not found")
        del self.streams[known.path]
        if known.life is None or known.life.may_have_ended(self.latest_ms):
            self.expired[known.path] = known
