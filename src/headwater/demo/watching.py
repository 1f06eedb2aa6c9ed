"""The current state of the demo: events per flow, rates, and the lag of Spark."""

from __future__ import annotations

import enum
import time
from collections import deque

import msgspec

from headwater import limits
from headwater.client import Client
from headwater.demo.feeding import Feeder
from headwater.demo.jobs import PUBLISHED, TABLE, Jobs
from headwater.demo.shop import STREAMS
from headwater.errors import StreamNotFoundError
from headwater.positions import byte_position


class SparkPhase(enum.Enum):
    """The phase of Spark. After it has caught up it stays `following`, even with a small lag."""

    STARTING = "starting"
    CATCHING_UP = "catching up"
    FOLLOWING = "following"


class Flow(msgspec.Struct, frozen=True):
    """Messages in a stream or rows of a table."""

    name: str
    count: int
    per_second: float
    last: str = ""  # the newest message


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the jobs."""

    phase: SparkPhase
    taken: Flow  # events in the Delta table, or superseded by it
    lag_s: float  # the age of the oldest event that is not in the table
    lag_events: int
    version: int | None  # of the Delta table
    versions_behind: dict[str, int]  # by publishing job
    quarantined: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    fed: Flow
    late: int
    repeated: int
    bad: int
    streams: list[Flow]  # of the shop
    spark: Spark
    published: Flow
    table: Flow


class Rate:
    """The rate of a count over the last seconds."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, int]] = deque()

    def per_second(self, now_s: float, count: int) -> float:
        self._past.append((now_s, count))
        while now_s - self._past[0][0] > limits.DEMO_RATE_OVER_S:
            self._past.popleft()
        then_s, before = self._past[0]
        return (count - before) / (now_s - then_s) if now_s > then_s else 0.0


class MessageCounter:
    """Counts the messages of a stream, reading only new ones.

    It remembers when it saw each message, to compute the lag of another reader.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._stream = client.stream(path, content_type="application/json")
        self._offset = "-1"
        self._rate = Rate()
        self._last = b""
        self._seen: deque[tuple[int, int, float]] = deque()  # bytes, messages, time
        self._reached = 0  # messages
        self.path = path
        self.count = 0

    def look(self, now_s: float) -> Flow:
        try:
            for batch in self._stream.read(type=bytes, offset=self._offset).batches():
                self._note(batch.items, batch.offset, now_s)
        except StreamNotFoundError:
            pass  # it is created with the first published event
        return Flow(self.path, self.count, self._rate.per_second(now_s, self.count), self._last.decode())

    def _note(self, messages: list[bytes], offset: str, now_s: float) -> None:
        self._offset = offset
        if messages:
            self._last = messages[-1]
            self.count += len(messages)
            self._seen.append((byte_position(offset) or 0, self.count, now_s))

    def progress(self, now_s: float, reached_bytes: int) -> tuple[int, float]:
        """The number of messages that a reader has read, and the age of the oldest unread one."""
        while self._seen and self._seen[0][0] <= reached_bytes:
            self._reached = self._seen.popleft()[1]
        return self._reached, now_s - self._seen[0][2] if self._seen else 0.0


class Monitor:
    """Samples the state of the demo regularly, and keeps the samples."""

    def __init__(self, client: Client, feeder: Feeder, jobs: Jobs) -> None:
        self._feeder = feeder
        self._jobs = jobs
        self._table = client.table(TABLE)
        self._tails = [MessageCounter(client, path) for path in STREAMS.values()]
        self._published = MessageCounter(client, PUBLISHED)
        self._rates = {name: Rate() for name in ("fed", "taken", "table")}
        self._phase = SparkPhase.STARTING
        self._began_s = time.monotonic()
        self.seen: list[Status] = []

    def look(self) -> Status:
        self._feeder.check()
        self._jobs.check()
        now_s = time.monotonic() - self._began_s
        delivery = self._feeder.delivery
        status = Status(
            seconds=now_s,
            fed=self._flow("fed", now_s, self._feeder.fed),
            late=delivery.late,
            repeated=delivery.repeated,
            bad=delivery.bad,
            streams=[tail.look(now_s) for tail in self._tails],
            spark=self._spark(now_s),
            published=self._published.look(now_s),
            table=self._flow("table", now_s, self._table_rows()),
        )
        self.seen.append(status)
        return status

    def has_caught_up(self) -> bool:
        """Whether everything in the last sample is materialized and published."""
        spark = self.seen[-1].spark
        is_done = spark.phase is not SparkPhase.STARTING and spark.lag_events == 0
        return is_done and not any(spark.versions_behind.values())

    def _spark(self, now_s: float) -> Spark:
        """The progress of Spark. Imports are delayed until Spark has started, to leave it the processor."""
        if self._phase is SparkPhase.STARTING and self._jobs.have_begun:
            self._phase = SparkPhase.CATCHING_UP
        has_begun = self._phase is not SparkPhase.STARTING
        reached = self._jobs.reached() if has_begun else {}
        places = [tail.progress(now_s, reached.get(tail.path, 0)) for tail in self._tails]
        taken, lag_s = sum(count for count, _ in places), max(age for _, age in places)
        if self._phase is SparkPhase.CATCHING_UP and taken and lag_s < limits.DEMO_CAUGHT_UP_S:
            self._phase = SparkPhase.FOLLOWING
        sent = self._jobs.published_versions() if has_begun else {}
        version = self._jobs.version() if has_begun else None
        return Spark(
            phase=self._phase,
            taken=self._flow("taken", now_s, taken),
            lag_s=lag_s,
            lag_events=sum(tail.count for tail in self._tails) - taken,
            version=version,
            versions_behind={name: (version or 0) - (-1 if one is None else one) for name, one in sent.items()},
            quarantined=self._jobs.quarantine_size() if has_begun else 0,
        )

    def _flow(self, name: str, now_s: float, count: int) -> Flow:
        return Flow(name, count, self._rates[name].per_second(now_s, count))

    def _table_rows(self) -> int:
        try:
            return self._table.info().last_seqno or 0
        except StreamNotFoundError:
            return 0  # it is created with the first published row
