"""Runs it all: server, feeder and Spark job, what they do at any moment, and whether the result is right."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

import headwater.spark
from headwater import limits
from headwater.client import Client
from headwater.demo.feeding import Feeder
from headwater.demo.job import CurrentState
from headwater.demo.shop import Shop
from headwater.errors import ClientError
from headwater.state import MaterializedState
from headwater.state.events import EventDecoder, is_change_event, is_control_event

EVENTS = "shop/events"
CURRENT = "shop/current"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is going on, at one moment."""

    seconds: float
    url: str
    fed: int
    fed_per_second: float
    taken: int
    taken_per_second: float
    batch: int | None
    table: str | None
    published: int
    published_per_second: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: the state by a plain fold of all events, in the table, and by a fold of the other stream."""

    events: int
    seconds: float
    batches: int
    keys: int
    table_keys: int
    stream_keys: int
    table_right: bool
    stream_right: bool

    @property
    def right(self) -> bool:
        return self.table_right and self.stream_right


@contextlib.contextmanager
def serving(data_dir: Path, port: int) -> Iterator[str]:
    """A server on the embedded store, as a process of its own; its URL."""
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    # In a session of its own: a Ctrl-C is for us, who still need the server to finish.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # noqa: S603
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        found = re.search(r"http://[^/\s]+", line)
        if found is None:
            raise ClientError("the server did not start; its message is above")
        yield found[0]
    finally:
        process.terminate()
        process.wait(limits.DEMO_STOP_S)


def run(
    directory: Path,
    *,
    port: int,
    per_second: float,
    going: Callable[[], bool],
    show: Callable[[Status], None],
    say: Callable[[str], None],
) -> Comparison:
    """Run for as long as `going` says, then let Spark catch up, and compare the results."""
    directory.mkdir(parents=True, exist_ok=True)
    say("starting the server")
    with serving(directory / "streams", port) as url, Client(url) as client:
        for path in (EVENTS, CURRENT):
            client.stream(path).create()
        before = _fold(client, EVENTS)
        say("starting Spark, which takes some seconds")
        spark = headwater.spark.session("headwater-demo", config={"spark.log.level": "ERROR"})
        try:
            job = CurrentState(spark, url, EVENTS, CURRENT, directory)
            query = job.start()
            feeder = Feeder(client, EVENTS, Shop(random.Random(), before.state), per_second)
            monitor = _Monitor(url, client, job, query, feeder)
            feeder.start()
            while going():
                monitor.look(show)
            feeder.stop()
            say("letting Spark catch up")
            monitor.catch_up(show)
            query.stop()
            return _compare(client, job, monitor)
        finally:
            spark.stop()


class _Monitor:
    """Looks at everything, again and again."""

    def __init__(self, url: str, client: Client, job: CurrentState, query: StreamingQuery, feeder: Feeder) -> None:
        self._url = url
        self._client = client
        self._job = job
        self._query = query
        self._feeder = feeder
        self._started_s = time.monotonic()
        self._past: deque[tuple[float, int, int, int]] = deque()
        self._seen: dict[int, int] = {}
        self.batches = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    def look(self, show: Callable[[Status], None]) -> Status:
        failure = self._query.exception()
        if failure is not None:
            raise failure
        for progress in self._query.recentProgress:
            if progress["numInputRows"]:
                self._seen[progress["batchId"]] = progress["numInputRows"]
        self.batches = len(self._seen)
        taken = sum(self._seen.values())
        now, fed, published = time.monotonic(), self._feeder.fed, _count(self._client, CURRENT)
        self._past.append((now, fed, taken, published))
        while now - self._past[0][0] > limits.DEMO_RATE_OVER_S:
            self._past.popleft()
        then, fed_then, taken_then, published_then = self._past[0]
        over_s = max(now - then, 0.001)
        version = self._job.version()
        found = Status(
            seconds=self.seconds,
            url=self._url,
            fed=fed,
            fed_per_second=(fed - fed_then) / over_s,
            taken=taken,
            taken_per_second=(taken - taken_then) / over_s,
            batch=max(self._seen, default=None),
            table=None if version is None else str(version),
            published=published,
            published_per_second=(published - published_then) / over_s,
        )
        show(found)
        time.sleep(limits.DEMO_LOOK_EVERY_S)
        return found

    def catch_up(self, show: Callable[[Status], None]) -> None:
        """Until the query has committed a batch that ends at the stream's end."""
        tail = self._client.stream(EVENTS).head().tail_offset
        deadline_s = time.monotonic() + limits.DEMO_CATCH_UP_S
        while not self._has_reached(tail):
            if time.monotonic() > deadline_s:
                raise ClientError(f"Spark did not catch up within {limits.DEMO_CATCH_UP_S:.0f} s")
            self.look(show)
        self.look(show)

    def _has_reached(self, tail: str) -> bool:
        progress = self._query.lastProgress
        if progress is None:
            return False
        end: dict[str, str] = json.loads(progress["sources"][0]["endOffset"] or "{}")
        return end.get(EVENTS) == tail


class _Folded(msgspec.Struct, frozen=True):
    state: MaterializedState
    events: int


_tails: dict[str, tuple[str, int]] = {}


def _count(client: Client, path: str) -> int:
    """How many messages a stream has; only what is new since the last time is read."""
    offset, count = _tails.get(path, ("-1", 0))
    reader = client.stream(path, content_type="application/json").read(type=bytes, offset=offset)
    for batch in reader.batches():
        count += len(batch.items)
        offset = batch.offset
    _tails[path] = (offset, count)
    return count


def _fold(client: Client, path: str) -> _Folded:
    state, count = MaterializedState(), 0
    for batch in client.stream(path).read(type=EventDecoder()).batches():
        for event in batch.items:
            if is_change_event(event):
                state.apply(event)
                count += 1
            elif is_control_event(event) and event.headers.control == "reset":
                state.clear()
    return _Folded(state, count)


def _plain(state: MaterializedState) -> dict[tuple[str, str], Any]:
    return {(kind, key): value for kind in state.types for key, value in state.get_type(kind).items()}


def _compare(client: Client, job: CurrentState, monitor: _Monitor) -> Comparison:
    events = _fold(client, EVENTS)
    expected = _plain(events.state)
    in_table = {(row.type, row.key): json.loads(row.value) for row in job.rows().collect()}
    in_stream = _plain(_fold(client, CURRENT).state)
    return Comparison(
        events=events.events,
        seconds=monitor.seconds,
        batches=monitor.batches,
        keys=len(expected),
        table_keys=len(in_table),
        stream_keys=len(in_stream),
        table_right=in_table == expected,
        stream_right=in_stream == expected,
    )
