"""The store in PostgreSQL: batches of appends by itself, beside pgbench that inserts the same bytes in the same
batches; reads; the cost of a version check; and servers that share it (`postgres_servers.py`).

What pgbench does for a batch is one INSERT of a row for each stream, with the bytes of all its appends, in a
transaction of its own, on one connection, after the answer to the one before. The store sends the next batch before
that answer, on one connection too, as the engine has it do while as much arrives as it stores. Both are durable. They
run in turns, and the medians of the turns are compared. A second pgbench inserts a row for each append, as an
application does that keeps its events in a table. Where each stream has one append, that is the same. A third one
updates a row of each stream in the same statement: it is what PostgreSQL has to do at least for a store that compares
versions, so its rate is about the highest that the store can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop
from tests.postgres import PostgresServer, own_postgres

from bench.pgbench import Pgbench, settings_of
from bench.postgres_servers import compare_servers
from bench.report import Row
from bench.server_bench import Bench
from headwater.limits import SHARED_BATCHES_AT_ONCE
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created
from headwater.log.moments import NEVER
from headwater.log.state import StreamState, evolve
from headwater.store.contract import Commit
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import PostgresDatabase
from headwater.store.postgres.opening import open_store
from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.upkeep import PostgresUpkeep

OURS = "PostgreSQL store"
BODY = b"x" * 100
SHAPES = ((1, 1), (1, 64), (64, 64), (64, 256))  # streams and appends of a batch
TURNS = 5
GOAL = "≥ 0.6"
TURNS_TO_SEND = 3  # of the loop, until a batch is sent
CATCH_UP_BYTES = 64 << 20
RECORD_BYTES = 1_000
READ_BYTES = 1 << 20
CHECKS_AT_ONCE = (1, 16, 256)


class Batches(NamedTuple):
    """How many batches were stored in some time, and the processor time of each in this process."""

    per_s: float
    cpu_ms: float


def run_postgres(bench: Bench) -> None:
    # On the disk of this directory: the appends have to be durable.
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as directory,
        _readable(Path(directory)) as readable,
        own_postgres(None, readable, shared_buffers="256MB", max_wal_size="4GB") as server,
    ):
        for streams, appends in SHAPES:
            _compare_batches(bench, server, streams, appends)
        uvloop.run(_reads(bench, server.new_database()))
        uvloop.run(_checks(bench, server.new_database()))
        compare_servers(bench, server)


@contextlib.contextmanager
def _readable(directory: Path) -> Iterator[Path]:
    """PostgreSQL may run as another user, who has to reach the directory."""
    directory.chmod(0o755)
    yield directory


# Batches


def _compare_batches(bench: Bench, server: PostgresServer, streams: int, appends: int) -> None:
    url = server.new_database()
    seconds = bench.seconds / TURNS
    size = appends * len(BODY)
    peers = {"pgbench": Pgbench(server, streams, size)}
    if appends > streams:
        peers["pgbench, a row for each append"] = Pgbench(server, streams, size, appends)
    peers["pgbench, with a state of each stream"] = Pgbench(server, streams, size, states=True)
    ours: list[Batches] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(TURNS):
        ours.append(uvloop.run(_batches(url, streams, appends, seconds)))
        for name, peer in peers.items():
            theirs[name].append(peer.per_s(seconds))
    title = f"batches, {streams} streams, {appends} appends"
    own = statistics.median(one.per_s for one in ours)
    cpu_ms = min(one.cpu_ms for one in ours)
    note = (
        f"{own:,.0f} batches/s, {SHARED_BATCHES_AT_ONCE} in progress as in the engine, {cpu_ms:.2f} ms of our "
        f"processor time each; {settings_of(server)}"
    )
    rates = {name: statistics.median(some) for name, some in theirs.items()}
    bench.note(Row(title, OURS, own * appends, "appends/s", own / rates["pgbench"], GOAL, note))
    for name, rate in rates.items():
        ratio = None if name == "pgbench" else own / rate
        note = f"the same bytes, one statement, {1000 / rate:.2f} ms each"
        bench.note(Row(title, name, rate * appends, "appends/s", ratio, note=note))


class Writer:
    """Appends to some streams, without an engine."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.states: list[StreamState] = []

    async def create(self, count: int) -> None:
        batch = []
        for _ in range(count):
            stream_id = await self._store.reserve_id()
            path = f"bench/{stream_id}"
            event = Created(
                id=stream_id, path=path, content_type="application/octet-stream", kind=ContentKind.BINARY, at_ms=1
            )
            state = evolve(None, event)
            if state is None:
                raise RuntimeError("a stream that was created does not exist")
            self.states.append(state)
            batch.append(Commit((event,), (state,), {path: 0, stream_id: 0}))
        await self.commit(batch)

    async def append(self, count: int, body: bytes = BODY) -> None:
        await self.commit(self.batch(count, body))

    def batch(self, count: int, body: bytes = BODY) -> list[Commit]:
        """A batch of appends, spread over the streams."""
        states = self.states
        batch = []
        for number in range(count):
            state = states[number % len(states)]
            event = Appended(state.id, state.tail, 1, body)
            expects: dict[int, int] = {state.id: state.version}
            batch.append(Commit((event,), (evolve(state, event),), expects))  # type: ignore[arg-type]
        return batch

    def commit(self, batch: Sequence[Commit]) -> asyncio.Future[None]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            ended.set_exception(error) if error else ended.set_result(None)

        self._store.commit(batch, done)
        return ended


async def _opened(url: str) -> PostgresStore:
    store = await open_store(url)
    await store.start(lambda error: None, lambda: NEVER)
    return store


async def _batches(url: str, streams: int, appends: int, seconds: float) -> Batches:
    store = await _opened(url)
    try:
        writer = Writer(store)
        await writer.create(streams)
        for _ in range(10):  # plans are made
            await writer.append(appends)
        count, began_s, began_cpu_s = 0, time.perf_counter(), _processor_s()
        in_progress: deque[asyncio.Future[None]] = deque()
        while time.perf_counter() - began_s < seconds:
            in_progress.append(writer.commit(writer.batch(appends)))
            for _ in range(TURNS_TO_SEND):
                await asyncio.sleep(0)
            if len(in_progress) == SHARED_BATCHES_AT_ONCE:  # as many as the engine has
                await in_progress.popleft()
            count += 1
        await asyncio.gather(*in_progress)
        took_s = time.perf_counter() - began_s
        return Batches(count / took_s, 1000 * (_processor_s() - began_cpu_s) / count)
    finally:
        await store.close()


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# Reads


async def _reads(bench: Bench, url: str) -> None:
    store = await open_store(url)  # without background work, which would pack
    try:
        writer = Writer(store)
        await writer.create(1)
        state = writer.states[0]
        body = b"x" * RECORD_BYTES
        while state.tail < CATCH_UP_BYTES:
            await writer.append(64, body)
        note = f"rows of 64 records of {RECORD_BYTES} bytes"
        bench.note(Row("catch-up, not packed", OURS, await _catch_up(store, state), "MB/s", note=note))
        packer = PostgresUpkeep(PostgresDatabase(url, "bench"), store.server, lambda: NEVER, DatabaseClock())
        began_s, began_cpu_s = time.perf_counter(), _processor_s()
        while await packer.pack(state.id):
            pass
        took_s, cpu_s = time.perf_counter() - began_s, _processor_s() - began_cpu_s
        await packer.close()
        note = f"{1e9 * cpu_s / state.tail:.1f} ms of our processor time for each MB"
        bench.note(Row("packing", OURS, state.tail / took_s / 1e6, "MB/s", note=note))
        rate = await _catch_up(store, state)
        bench.note(Row("catch-up, packed", OURS, rate, "MB/s", note="one reader, pieces of 1 MiB"))
    finally:
        await store.close()


async def _catch_up(store: PostgresStore, state: StreamState) -> float:
    position, began_s = 0, time.perf_counter()
    while position < state.tail:
        position = (await store.read(state.id, position, state.tail, READ_BYTES)).next
    return state.tail / (time.perf_counter() - began_s) / 1e6


# Version checks


async def _checks(bench: Bench, url: str) -> None:
    store = await _opened(url)
    try:
        writer = Writer(store)
        await writer.create(max(CHECKS_AT_ONCE))
        for at_once in CHECKS_AT_ONCE:
            states = writer.states[:at_once]
            count, began_s, began_cpu_s = 0, time.perf_counter(), _processor_s()
            while time.perf_counter() - began_s < bench.seconds / 5:
                await asyncio.gather(*(store.changed({state.id: state.version}) for state in states))
                count += at_once
            per_s = count / (time.perf_counter() - began_s)
            cpu_us = 1e6 * (_processor_s() - began_cpu_s) / count
            note = f"{1e3 * at_once / per_s:.2f} ms each turn, {cpu_us:.0f} µs of our processor time each"
            bench.note(Row(f"version checks, {at_once} at once", OURS, per_s, "checks/s", note=note))
    finally:
        await store.close()
