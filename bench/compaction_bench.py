"""Compaction: an hour of updates in fast forward, with and without it, and appends while a front is compacted.

Two servers get the same updates to 10,000 keys, 250 for each second of the hour, in a few minutes. One of them compacts
its stream. After every other minute of the hour, disk, memory and the start of a new reader are measured, and both
readers must have the same state.

Appends are measured in turns: during a run that compacts a fork of a large stream, to which is appended as well, and
after it, for as long as the run took.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.load import Appends, append_load
from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from bench.soak import disk_bytes
from headwater.cli.load import percentile
from headwater.protocol.state.entities import Entities

KEYS = 10_000
MINUTES, SAMPLE_MINUTES = 60, 2
UPDATES_PER_S, BATCH = 250, 500
COMPACT_AFTER_S = 10
SMALL = ("segment_bytes=4194304", "fold_idle_s=0.5", "disk_reserve_bytes=65536")  # so that what is seen is the stream
JSON = {"content-type": "application/json"}
COMPACTED, KEPT = "compacted", "not compacted"
NEVER_TWICE = 1.25  # the maximum of the second half of the hour over that of the first

FRONT_UPDATES = 250_000
PAIRS = 6
SLICE = 0.2  # of the seconds of a load
CONNECTIONS = 16

Sample = dict[str, Any]


def run_compaction(bench: Bench) -> None:
    samples = list(_hour(bench.seconds))
    bench.samples += samples
    _note_hour(bench, samples)
    _appends(bench)


# An hour of updates


def _hour(minute_s: float) -> Iterator[Sample]:
    options = [word for limit in SMALL for word in ("--limit", limit)]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as created:
        directories = {name: Path(created, name.replace(" ", "-")) for name in (COMPACTED, KEPT)}
        with (
            headwater("--data-dir", str(directories[COMPACTED]), *options) as compacting,
            headwater("--data-dir", str(directories[KEPT]), *options) as keeping,
        ):
            servers = {COMPACTED: _Stream(compacting, compact=True), KEPT: _Stream(keeping)}
            updates = _updates(random.Random(1))
            for minute in range(1, MINUTES + 1):
                ends_s = time.monotonic() + minute_s
                for _ in range(60 * UPDATES_PER_S // BATCH):
                    body = next(updates)
                    for stream in servers.values():
                        stream.append(body)
                time.sleep(max(0.0, ends_s - time.monotonic()))
                if minute % SAMPLE_MINUTES == 0:
                    states = {name: stream.start() for name, stream in servers.items()}
                    if states[COMPACTED].state != states[KEPT].state:
                        raise RuntimeError("the reader of the compacted stream has another state")
                    for name, stream in servers.items():
                        yield _sample(name, minute, stream, disk_bytes(directories[name]), states[name])


def _sample(name: str, minute: int, stream: _Stream, disk: int, start: _Start) -> Sample:
    sample = {
        "series": name,
        "minute": minute,
        "updates": minute * 60 * UPDATES_PER_S,
        "disk_mb": round(disk / 1e6, 1),
        "memory_mb": round(stream.server.memory_bytes() / 1e6, 1),
        "start_ms": round(start.seconds * 1e3, 1),
        "read_mb": round(start.size_bytes / 1e6, 2),
    }
    print(json.dumps(sample), flush=True)
    return sample


@dataclass
class _Start:
    """A new reader that has everything."""

    seconds: float
    size_bytes: int
    state: dict[str, int]


class _Stream:
    """A stream of updates on a server."""

    def __init__(self, server: Server, *, compact: bool = False) -> None:
        self.server = server
        self._connection = _connect(server)
        after = {"stream-compact": "true", "stream-compact-after": str(COMPACT_AFTER_S)} if compact else {}
        _request(self._connection, "PUT", "/v1/stream/updates", headers=after)

    def append(self, body: bytes) -> None:
        _request(self._connection, "POST", "/v1/stream/updates", body)

    def start(self) -> _Start:
        """Read everything and fold it, as a new reader does."""
        started_s = time.perf_counter()
        entities, size_bytes = Entities(), 0
        for data in _pages(_connect(self.server), "updates"):
            size_bytes += len(data)
            if len(data) > len(b"[]"):
                for _ in entities.fold(data[1:-1] + b","):
                    """All of it."""
        seconds = time.perf_counter() - started_s
        return _Start(seconds, size_bytes, _numbers(entities))


def _numbers(entities: Entities) -> dict[str, int]:
    """The number in the value of each entity."""
    page = entities.page(None, b"", KEYS, bytes_max=1 << 30)
    return {entity.key: json.loads(bytes(entity.value))["n"] for entity in page.entities}


def _updates(chance: random.Random) -> Iterator[bytes]:
    """Bodies of appends, each with some updates."""
    number = 0
    while True:
        events = []
        for _ in range(BATCH):
            number += 1
            events.append(_update(chance.randrange(KEYS), number))
        yield b"[%b]" % b",".join(events)


def _update(key: int, number: int) -> bytes:
    value = b'{"id":%d,"name":"customer number %d","status":"active","balance":%d.5,"n":%d}'
    event = b'{"type":"customer","key":"%d","value":' + value + b',"headers":{"operation":"upsert"}}'
    return event % (key, key, key, number * 7 % 100_000, number)


def _note_hour(bench: Bench, samples: list[Sample]) -> None:
    figures = (("disk", "disk_mb", "MB"), ("memory of the server", "memory_mb", "MB"), ("start", "start_ms", "ms"))
    for what, key, unit in figures:
        last = {name: _last(samples, name, key) for name in (COMPACTED, KEPT)}
        title = "start of a new reader" if key == "start_ms" else what
        note = f"{samples[-1]['updates']:,} updates to {KEYS:,} keys"
        panel = f"{title} after an hour"
        ratio = last[KEPT] / last[COMPACTED]
        bench.note(Row(f"{title}, {KEPT}", "headwater", last[KEPT], unit, note=note, panel=panel))
        bench.note(Row(f"{title}, {COMPACTED}", "headwater", last[COMPACTED], unit, ratio, "", note, panel))
        half = [
            max(sample[key] for sample in samples if sample["series"] == COMPACTED and is_early == _is_early(sample))
            for is_early in (True, False)
        ]
        name = f"{what}: maximum of the second half hour over that of the first"
        bench.note(Row(name, "headwater", half[1] / half[0], "times", None, f"<= {NEVER_TWICE}"))


def _is_early(sample: Sample) -> bool:
    return bool(sample["minute"] <= MINUTES / 2)


def _last(samples: list[Sample], name: str, key: str) -> float:
    """The figure at the end of the hour: the median of the last samples."""
    return float(statistics.median([sample[key] for sample in samples if sample["series"] == name][-5:]))


# Appends


@dataclass
class _Slices:
    """Short loads, one after the other."""

    rates: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    def add(self, appends: Appends) -> None:
        self.rates.append(appends.per_second)
        self.latencies_s += appends.latencies_s

    @property
    def per_second(self) -> float:
        return statistics.mean(self.rates)

    @property
    def p99_ms(self) -> float:
        return percentile(self.latencies_s, 0.99) * 1e3


def _appends(bench: Bench) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as directory,
        headwater("--data-dir", f"{directory}/data") as server,
    ):
        old = _Stream(server)
        updates = _updates(random.Random(2))
        for _ in range(FRONT_UPDATES // BATCH):
            old.append(next(updates))
        pairs = [_pair(server, number, SLICE * bench.seconds) for number in range(PAIRS)]
    _note_appends(bench, pairs)


def _pair(server: Server, number: int, slice_s: float) -> tuple[_Slices, _Slices]:
    """The loads during a run, and as many after it."""
    connection = _connect(server)
    fork = f"fork/{number}"
    _request(connection, "PUT", f"/v1/stream/{fork}", headers={"stream-forked-from": "/v1/stream/updates"})
    names = [fork, *[f"other/{number}/{other}" for other in range(1, CONNECTIONS)]]
    for name in names[1:]:
        _request(connection, "PUT", f"/v1/stream/{name}")
    _load(server, names, slice_s)  # so that the first load finds everything loaded
    run = threading.Thread(target=_compact, args=(server, fork))
    during, after = _Slices(), _Slices()
    run.start()
    while run.is_alive():
        appends = _load(server, names, slice_s)
        if run.is_alive() or not during.rates:
            during.add(appends)
    run.join()
    for _ in during.rates:
        after.add(_load(server, names, slice_s))
    return during, after


def _load(server: Server, names: list[str], seconds: float) -> Appends:
    return uvloop.run(append_load(server, [[name] for name in names], _update(1, 1), seconds))


def _compact(server: Server, name: str) -> None:
    answer = _request(_connect(server), "POST", f"/v1/stream/__ds/compact?path={name}")
    if not json.loads(answer)["compacted"]:
        raise RuntimeError(f"{name} was not compacted: {answer!r}")


def _note_appends(bench: Bench, pairs: list[tuple[_Slices, _Slices]]) -> None:
    rate = statistics.median(during.per_second / after.per_second for during, after in pairs)
    p99 = statistics.median(after.p99_ms / during.p99_ms for during, after in pairs)
    count = sum(len(during.rates) for during, _ in pairs)
    note = f"median of {PAIRS} runs, {count} slices"
    shown = (("without a compaction", 1, None, None), ("during a compaction", 0, rate, p99))
    for name, which, rate_ratio, p99_ratio in shown:
        panels = [pair[which] for pair in pairs]
        per_second = statistics.median(slices.per_second for slices in panels)
        p99_ms = statistics.median(slices.p99_ms for slices in panels)
        goal = "" if rate_ratio is None else "≥ 0.8"
        bench.note(Row(f"appends {name}", "headwater", per_second, "/s", rate_ratio, goal, note, "appends"))
        goal = "" if p99_ratio is None else "≥ 0.5"
        bench.note(Row(f"append p99 {name}", "headwater", p99_ms, "ms", p99_ratio, goal, note, "append p99"))


# Requests


def _connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.host, server.port, timeout=600)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    connection.request(method, path, body or None, {**JSON, **(headers or {})})
    response = connection.getresponse()
    data = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {data[:200]!r}")
    return data


def _pages(connection: http.client.HTTPConnection, name: str) -> Iterator[bytes]:
    """The bodies of reads from the beginning to the tail."""
    offset, is_over = "-1", False
    while not is_over:
        connection.request("GET", f"/v1/stream/{name}?offset={offset}")
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"a read failed: {response.status} {data[:200]!r}")
        yield data
        offset, is_over = response.headers["stream-next-offset"], "stream-up-to-date" in response.headers
