"""Entities by URL: one of a million, beside reading the stream; the memory of their state, and what the fold costs."""

from __future__ import annotations

import gc
import http.client
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from bench.stalls import watched
from headwater.cli.load import percentile
from headwater.protocol.state.entities import Entities

ENTITIES = 1_000_000
KEYS = 10_000  # of the stream with a million events over few entities
BATCH = 5_000
REQUESTS = 3_000
STALL_MS_MAX = 50  # of processor time
JSON = {"content-type": "application/json"}


def run_state_by_url(bench: Bench) -> None:
    _fold(bench)
    _stalls(bench)
    with tempfile.TemporaryDirectory() as directory:
        options = ("--data-dir", f"{directory}/data")
        with headwater(*options) as server:
            _fill(server, "many", ENTITIES, ENTITIES)
            _fill(server, "few", ENTITIES, KEYS)
        with headwater(*options) as server:  # without the memory that the appends have used
            server.wait_until_folded()
            _one_of_many(bench, server)
            _start(bench, server)


def _events(count: int, keys: int) -> Iterator[bytes]:
    """Batches of events over so many keys in random order, as they are stored."""
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    one = (
        b'{"type":"row","key":"%d","value":{"id":"%d","name":"row number %d","price":%d.5,"count":%d},'
        b'"headers":{"operation":"upsert"}},'
    )
    for first in range(0, count, BATCH):
        some = [number % keys for number in numbers[first : first + BATCH]]
        yield b"".join([one % (key, key, number, key, number) for number, key in enumerate(some, first)])


def _fold(bench: Bench) -> None:
    for keys, what in ((KEYS, f"{KEYS:,} entities"), (ENTITIES, f"{ENTITIES:,} entities")):
        batches = list(_events(ENTITIES, keys))
        state = Entities()
        for label in ("new", "again"):
            started_s = time.process_time()
            for batch in batches:
                for _ in state.fold(batch):
                    """All of it."""
            seconds = time.process_time() - started_s
            note = "processor time of an event"
            bench.note(Row(f"fold, {what}, {label}", "headwater", seconds / ENTITIES * 1e6, "us", None, "", note))
        del batches


def _request(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> bytes:
    connection.request(method, path, body or None, JSON)
    response = connection.getresponse()
    data = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {data[:200]!r}")
    return data


def _fill(server: Server, name: str, count: int, keys: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    _request(connection, "PUT", f"/v1/stream/{name}")
    for batch in _events(count, keys):
        _request(connection, "POST", f"/v1/stream/{name}", b"[%b]" % batch[:-1])
    return connection


def _stalls(bench: Bench) -> None:
    """How long building a state, and pages of it, hold the event loop."""
    with watched() as (server, stall):
        connection = _fill(server, "s", 200_000, 200_000)
        gc.collect()
        stall.reset()
        _request(connection, "GET", "/v1/stream/__ds/state?path=s&type=row&key=1")
        _note_stall(bench, "loop held by building a state", stall.cpu_s, stall.wall_s)
        stall.reset()
        for _ in range(5):
            _request(connection, "GET", "/v1/stream/__ds/state?path=s&limit=10000")
        _note_stall(bench, "loop held by a page of 10,000", stall.cpu_s, stall.wall_s)


def _note_stall(bench: Bench, what: str, cpu_s: float, wall_s: float) -> None:
    note = f"wall {wall_s * 1e3:.0f} ms; 200,000 entities"
    bench.note(Row(what, "headwater", cpu_s * 1e3, "ms", None, f"<= {STALL_MS_MAX}", note))


def _one_of_many(bench: Bench, server: Server) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    read_s = _timed(lambda: _read_all(connection, "many"))
    before_bytes = server.memory_bytes()
    first_s = _timed(lambda: _entity(connection, 0))
    state_bytes = server.memory_bytes() - before_bytes
    chosen = random.Random(2)
    times_s = [_timed(lambda: _entity(connection, chosen.randrange(ENTITIES))) for _ in range(REQUESTS)]
    median_s, slow_s = percentile(times_s, 0.5), percentile(times_s, 0.99)
    what = f"one entity of {ENTITIES:,}"
    bench.note(Row(f"{what}, warm, p50", "headwater", median_s * 1e3, "ms", read_s / median_s, "", "beside all data"))
    bench.note(Row(f"{what}, warm, p99", "headwater", slow_s * 1e3, "ms", None, "<= 5"))
    bench.note(Row(f"{what}, first request", "headwater", first_s, "s", None, "", "the state is built"))
    bench.note(Row("all data of that stream", "headwater", read_s, "s"))
    text_bytes = sum(len(batch) for batch in _events(BATCH, ENTITIES)) / BATCH
    note = f"an event has {text_bytes:.0f} bytes; resident, after reading it"
    bench.note(Row("memory of an entity", "headwater", state_bytes / ENTITIES, "bytes", None, "<= 160", note))


def _entity(connection: http.client.HTTPConnection, key: int) -> None:
    entity = json.loads(_request(connection, "GET", f"/v1/stream/__ds/state?path=many&type=row&key={key}"))
    if entity["value"]["id"] != str(key):
        raise RuntimeError(f"another entity than {key}: {entity}")


def _start(bench: Bench, server: Server) -> None:
    """What a reader needs to have the state: all events, or the pages of a state that is built or not."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    read_s = _timed(lambda: _read_all(connection, "few"))
    cold_s = _timed(lambda: _read_pages(connection, "few"))
    warm_s = min(_timed(lambda: _read_pages(connection, "few")) for _ in range(5))
    bench.note(Row(f"events, {ENTITIES:,} of {KEYS:,} entities", "headwater", read_s, "s"))
    bench.note(Row("pages of the same state, first request", "headwater", cold_s, "s", read_s / cold_s))
    bench.note(Row("pages of the same state, warm", "headwater", warm_s, "s", read_s / warm_s))


def _read_all(connection: http.client.HTTPConnection, name: str) -> None:
    offset, is_over = "-1", False
    while not is_over:
        connection.request("GET", f"/v1/stream/{name}?offset={offset}")
        response = connection.getresponse()
        response.read()
        offset, is_over = response.headers["stream-next-offset"], "stream-up-to-date" in response.headers


def _read_pages(connection: http.client.HTTPConnection, name: str) -> None:
    after: str | None = ""
    count = 0
    while after is not None:
        text = _request(connection, "GET", f"/v1/stream/__ds/state?path={name}&limit=10000&after={after}")
        page = json.loads(text)
        after, count = page["next"], count + len(page["entities"])
    if count != KEYS:
        raise RuntimeError(f"{count} of {KEYS} entities")


def _timed(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
