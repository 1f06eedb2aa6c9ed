"""Everything that the clients of a simulated server know, through all its lives."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    """An idempotent producer that retries what was not acknowledged until it knows."""

    generation: int
    seq: int = 0
    unacknowledged: int | None = None


class World:
    """Everything that clients know, through all lives of the server."""

    def __init__(
        self, rng: random.Random, disk: SimDisk, paths: tuple[str, ...] = PATHS, conditional: float = 0.0
    ) -> None:
        self.paths = paths
        self.conditional = conditional  # how many of the appends say where the stream ends
        self.random = rng
        self.disk = disk
        self.names = Names()
        self.streams: dict[str, KnownStream] = {}
        self.expired: dict[str, KnownStream] = {}  # not found since; a clock that is set back may show it again
        self.uncertain: set[str] = set()  # paths where a create or delete was under way at a crash
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
        """The server is gone: whatever was under way may have happened up to now."""
        self.latest_ms = max(self.latest_ms, now_ms)
        for known in self.streams.values():
            if known.asking and known.life is not None:
                known.life.used_ms = max(known.life.used_ms, now_ms)
            known.asking = 0

    def lose(self, known: KnownStream, now_ms: int) -> None:
        """A stream was not found."""
        if self.streams.get(known.path) is not known:
            return
        self.latest_ms = max(self.latest_ms, now_ms)
        if known.must_exist(self.latest_ms):
            raise BrokenPromiseError(f"{known.path} is not there")
        del self.streams[known.path]
        if known.life is None or known.life.may_have_ended(self.latest_ms):
            self.expired[known.path] = known
