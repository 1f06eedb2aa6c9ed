"""Servers that share a PostgreSQL: appends to one, two and three of them, beside pgbench and beside a server with a
directory; catch-up, live delivery from one server to another, the cost of the check of a version before a read, and how
long it takes until another server does the work of one that was killed.

All servers run during the whole bench, so they take turns without a start between them. Connections are spread over the
servers. With many streams each stream is appended to at one server, as behind a proxy that hashes paths; a single
stream is appended to at all of them. pgbench has a connection for each server, and inserts batches of the size that the
servers had in the turn before.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import uvloop
from tests.postgres import PostgresServer

from bench.load import Appends, call, create_streams, delivery_load, request, request_load
from bench.pgbench import Pgbench, settings_of
from bench.report import Row
from bench.servers import Server, headwater
from headwater.cli.load import percentile
from headwater.limits import ROLE_LOOK_S

if TYPE_CHECKING:
    from bench.server_bench import Bench

CONNECTIONS = 64
SERVERS = (1, 2, 3)
STREAMS = (1, 64)
TURNS = 3
BODY = b'{"pad":"' + b"x" * 90 + b'"}'
CATCH_UP_BYTES = 50_000_000
DELIVERIES = 200
DELIVERY_PAUSE_S = 0.01
DELIVERED = {0.5: "≤ 10", 0.99: "≤ 100"}  # ms from the acknowledgement at one server to a reader at another one
TAKE_OVERS = 3
TAKE_OVER_S_MAX = 7.5  # the time of the role, and until a server looks
DIRECTORY = "server with a directory"
# Of the server with a directory, on a machine with two cores, which the servers share with PostgreSQL and the clients.
APPENDS = {1: {1: "≥ 0.25", 2: "≥ 0.08", 3: "≥ 0.05"}, 64: {1: "≥ 0.25", 2: "≥ 0.15", 3: "≥ 0.12"}}
READS = {"HEAD": {1: "≥ 0.12", 64: "≥ 0.4"}, "GET": {1: "≥ 0.2", 64: "≥ 0.3"}}


def compare_servers(bench: Bench, database: PostgresServer) -> None:
    url = database.new_database()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(headwater("--store", url)) for _ in range(max(SERVERS))]
        embedded = stack.enter_context(headwater("--data-dir", str(database.data.parent.parent / "data")))
        for streams in STREAMS:
            _appends(bench, database, servers, embedded, streams)
        _checks(bench, servers, embedded)
        _catch_up(bench, servers, embedded)
        _deliveries(bench, servers, embedded)
    _take_over(bench, database.new_database())


# Appends


class _Turn(NamedTuple):
    """What some servers did in a turn, and how many appends a batch of them had."""

    appends: Appends
    batch: float


def _appends(bench: Bench, database: PostgresServer, servers: Sequence[Server], embedded: Server, streams: int) -> None:
    sides = {f"{count} server{'s' if count > 1 else ''}": servers[:count] for count in SERVERS}
    turns: dict[str, list[_Turn]] = {name: [] for name in (*sides, DIRECTORY)}
    floors: dict[str, list[float]] = {name: [] for name in sides}
    seconds = bench.seconds / TURNS
    for number in range(TURNS):
        names = [f"appends/{streams}/{number}/{stream}" for stream in range(streams)]
        for server in (servers[0], embedded):
            create_streams(server, names)
        turns[DIRECTORY].append(_load([embedded], names, seconds))
        for name, some in sides.items():
            turns[name].append(_load(some, names, seconds))
            batch = max(1, round(turns[name][-1].batch))
            peer = Pgbench(database, min(batch, streams), batch * (len(BODY) + 1))
            floors[name].append(peer.per_s(seconds, len(some)) * batch)
    title = f"appends over HTTP, {streams} streams"
    rates = {name: statistics.median(turn.appends.per_second for turn in some) for name, some in turns.items()}
    bench.note(Row(title, DIRECTORY, rates[DIRECTORY], "/s", note=_note(turns[DIRECTORY])))
    for name in sides:
        note, goal = f"{_note(turns[name])}; {settings_of(database)}", APPENDS[streams][len(sides[name])]
        bench.note(Row(title, f"PostgreSQL, {name}", rates[name], "/s", rates[name] / rates[DIRECTORY], goal, note))
        peer_rate = statistics.median(floors[name])
        bench.note(Row(title, f"pgbench, {name}", peer_rate, "/s", rates[name] / peer_rate, note="the same batches"))


def _load(servers: Sequence[Server], names: Sequence[str], seconds: float) -> _Turn:
    before = [_batches(server) for server in servers]
    connections = [
        (server, [request("POST", server, names[number % len(names)], BODY)])
        for number in range(CONNECTIONS)
        for server in (servers[number % len(servers)],)
    ]
    appends = uvloop.run(request_load(connections, seconds))
    after = [_batches(server) for server in servers]
    records, batches = (
        sum(late[part] - early[part] for early, late in zip(before, after, strict=True)) for part in (0, 1)
    )
    return _Turn(appends, records / batches)


def _batches(server: Server) -> tuple[float, float]:
    """Records that became durable, and batches of them."""
    name = "headwater_commit_batch_records"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")


def _note(turns: Sequence[_Turn]) -> str:
    p50, p99 = (statistics.median(turn.appends.latency_ms(share) for turn in turns) for share in (0.5, 0.99))
    batch = statistics.median(turn.batch for turn in turns)
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {batch:.0f} appends a batch"


# Reads


def _checks(bench: Bench, servers: Sequence[Server], embedded: Server) -> None:
    """Reads from memory, which need a check of the version if others can change the stream."""
    names = [f"checks/{number}" for number in range(CONNECTIONS)]
    for server in (servers[0], embedded):
        create_streams(server, names)
        for name in names:
            call(server, "POST", name, BODY)
    for method, end in (("HEAD", b"\r\n\r\n"), ("GET", b'"}]')):
        for connections in (1, CONNECTIONS):
            rates: dict[str, list[Appends]] = {"PostgreSQL, 1 server": [], DIRECTORY: []}
            for _ in range(TURNS):
                for name, server in zip(rates, (servers[0], embedded), strict=True):
                    requests = [(server, [request(method, server, path)]) for path in names[:connections]]
                    rates[name].append(uvloop.run(request_load(requests, bench.seconds / TURNS / 2, end)))
            title = f"{method} of a stream, {connections} connections"
            theirs = statistics.median(run.per_second for run in rates[DIRECTORY])
            for name, runs in rates.items():
                rate = statistics.median(run.per_second for run in runs)
                p50, p99 = (statistics.median(run.latency_ms(share) for run in runs) for share in (0.5, 0.99))
                note = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
                if name == DIRECTORY:
                    bench.note(Row(title, name, rate, "/s", note=note))
                else:
                    bench.note(Row(title, name, rate, "/s", rate / theirs, READS[method][connections], note))


def _catch_up(bench: Bench, servers: Sequence[Server], embedded: Server) -> None:
    for server in (servers[0], embedded):
        bench.fill(server, "catch-up", CATCH_UP_BYTES)
    embedded.wait_until_folded()
    rates = {
        "PostgreSQL, other server": bench.catch_up(servers[1], "catch-up", 5),
        DIRECTORY: bench.catch_up(embedded, "catch-up", 5),
    }
    ours, theirs = rates.values()
    for name, rate in rates.items():
        ratio, goal = (None, "") if name == DIRECTORY else (ours / theirs, "≥ 0.2")
        bench.note(Row("catch-up of 50 MB JSON", name, rate, "MB/s", ratio, goal))


# Live delivery


def _deliveries(bench: Bench, servers: Sequence[Server], embedded: Server) -> None:
    """From an append to its arrival at an SSE reader; a reader at another server also from its acknowledgement, which
    is before the other servers learn of it."""
    delays: dict[str, list[float]] = {}
    for name, server, subscribed in (
        ("PostgreSQL, other server", servers[0], servers[1]),
        ("PostgreSQL, same server", servers[0], servers[0]),
        (DIRECTORY, embedded, embedded),
    ):
        delays[name] = _delays(server, subscribed, f"live/{len(delays)}")
    after = _delays(servers[0], servers[1], "live/acknowledged", from_acknowledgement=True)
    for share in (0.5, 0.99):
        title = f"SSE delivery p{share * 100:.0f}"
        best = percentile(delays[DIRECTORY], share)
        for name, some in delays.items():
            value = percentile(some, share)
            bench.note(Row(title, name, 1000 * value, "ms", best / value if name != DIRECTORY else None))
        title = f"from the acknowledgement to a reader at another server, p{share * 100:.0f}"
        bench.note(Row(title, "PostgreSQL", 1000 * percentile(after, share), "ms", goal=DELIVERED[share]))


def _delays(server: Server, subscribed: Server, path: str, *, from_acknowledgement: bool = False) -> list[float]:
    call(server, "PUT", path)
    return uvloop.run(
        delivery_load(
            *(server, path, 1, DELIVERIES, DELIVERY_PAUSE_S),
            subscribed=subscribed,
            from_acknowledgement=from_acknowledgement,
        )
    )


# The role


def _take_over(bench: Bench, url: str) -> None:
    """From `kill -9` of the server with the role until another one answers a request that only the one with the role
    can answer."""
    took_s: list[float] = []
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(headwater("--store", url)) for _ in range(2)]
        for _ in range(TAKE_OVERS):
            [holder] = [server for server in servers if server.metric("headwater_role_held")]
            servers.remove(holder)
            servers.append(stack.enter_context(headwater("--store", url)))
            time.sleep(random.uniform(0, ROLE_LOOK_S))  # the role was renewed some time ago
            os.kill(holder.pid, signal.SIGKILL)
            killed_s = time.perf_counter()
            while not _lists_subscriptions(servers[0]):
                time.sleep(0.02)
            took_s.append(time.perf_counter() - killed_s)
    title = "another server does the work of one that was killed"
    note = f"median of {TAKE_OVERS}, from {min(took_s):.1f} to {max(took_s):.1f} s"
    bench.note(Row(title, "PostgreSQL", statistics.median(took_s), "s", goal=f"≤ {TAKE_OVER_S_MAX:g}", note=note))


def _lists_subscriptions(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/__ds/subscriptions", timeout=0.5) as response:
            return bool(response.status == 200)
    except OSError:  # also without an answer in time
        return False
