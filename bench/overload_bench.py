"""Overload: more load than the capacity of the server, one client that floods it, and too little memory.

Server and clients share the machine, so every figure is a ratio to another figure of the same run. Appends of 10 KB
with 100 messages make the server the bottleneck: they take ten times as much of its time as of the clients' time.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.load import append_load, call, create_streams, request
from bench.overload_load import Clients, Outcome
from bench.report import Row
from bench.server_bench import BODY, Bench
from bench.servers import Server, headwater
from headwater.cli.load import percentile

MIB = 1024 * 1024
BATCH = b"[" + b",".join([BODY] * 100) + b"]"
STREAMS = 200
THINK_S = 1.0
CLIENTS_MAX = 15_000  # descriptors of one process
MARK_BYTES = 512 * MIB
SMALL_MARK_BYTES = 256 * MIB
ROUNDS = 3
VICTIM, FLOOD = "127.0.0.3", "127.0.0.2"
RATE = 500  # requests a second and address


@contextlib.contextmanager
def _durable(*settings: str) -> Iterator[Server]:
    options = [part for setting in settings for part in ("--limit", setting)]
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as directory,
        headwater("--data-dir", f"{directory}/data", *options) as server,
    ):
        yield server


@contextlib.contextmanager
def _memory_of(server: Server) -> Iterator[Callable[[], int]]:
    """The maximum resident memory since the start of the block."""
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, server.memory_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most
    finally:
        ended.set()
        thread.join()


def run_overload(bench: Bench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _durable(f"memory_bytes_max={MARK_BYTES}") as server:
            _too_much(bench, server)
        with _durable(f"requests_per_s_per_address={RATE}") as server:
            _one_floods(bench, server)
        with _durable(f"memory_bytes_max={SMALL_MARK_BYTES}") as server:
            _large_bodies(bench, server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Load above the capacity


def _too_much(bench: Bench, server: Server) -> None:
    names = [f"overload/{number}" for number in range(STREAMS)]
    create_streams(server, names)
    requests = [request("POST", server, name, BATCH) for name in names]
    capacity = uvloop.run(append_load(server, [[name] for name in names[:64]], BATCH, bench.seconds)).per_second
    capacity = min(capacity, CLIENTS_MAX / 3 / THINK_S)

    async def offer(times: float) -> Outcome:
        clients = Clients(server, requests, think_s=THINK_S)
        await clients.open(int(capacity * times * THINK_S))
        try:
            return await clients.run(2 * THINK_S, bench.seconds)
        finally:
            clients.close()

    peaks, kept, after = [], [], []
    with _memory_of(server) as most:
        for _ in range(ROUNDS):  # alternating, so that a slow phase of the machine affects all of them
            peaks.append(uvloop.run(offer(1)))
            kept.append(uvloop.run(offer(3)))
            after.append(uvloop.run(offer(0.5)))
        memory = most()
    panel = "good appends, offered 1 and 3 times the capacity"
    peak, overloaded = (max(run.per_second for run in runs) for runs in (peaks, kept))
    ratios = [run.per_second / before.per_second for run, before in zip(kept, peaks, strict=True)]
    refused = statistics.median(run.refused / run.seconds for run in kept)
    late = statistics.median(run.late / run.seconds for run in kept)
    bench.note(Row("offered 1 x capacity", "headwater", peak, "/s", note="acknowledged within 1 s", panel=panel))
    note = f"median of {ROUNDS} rounds; refused {refused:,.0f}/s, later than 1 s {late:,.0f}/s"
    ratio = statistics.median(ratios)
    bench.note(Row("offered 3 x capacity", "headwater", overloaded, "/s", ratio, "≥ 0.8", note, panel))
    good = statistics.median(run.per_second for run in after)
    note = "offered right after; a ratio of 1 is all of it"
    bench.note(Row("then 0.5 x capacity", "headwater", good, "/s", good / (capacity / 2), "≥ 0.9", note, panel))
    note = f"the mark is {MARK_BYTES // MIB} MiB; the ratio is its share"
    bench.note(Row("memory, 3 x capacity", "headwater", memory / MIB, "MiB", memory / MARK_BYTES, "< 1", note))


# One client that floods the server


def _flood(server: Server, path: str, started: Any, ended: Any) -> None:
    async def send() -> None:
        clients = Clients(server, [request("POST", server, path, BODY)], think_s=0, polite=False, address=FLOOD)
        await clients.open(256)
        started.set()
        running = asyncio.ensure_future(clients.run(0, 3_600))
        await asyncio.to_thread(ended.wait)
        running.cancel()
        clients.close()

    uvloop.run(send())


@contextlib.contextmanager
def _flooding(server: Server, path: str) -> Iterator[None]:
    """A client that sends as fast as possible over 256 connections and ignores Retry-After."""
    started, ended = multiprocessing.Event(), multiprocessing.Event()
    process = multiprocessing.Process(target=_flood, args=(server, path, started, ended), daemon=True)
    process.start()
    started.wait()
    try:
        yield
    finally:
        ended.set()
        process.join()


def _one_floods(bench: Bench, server: Server) -> None:
    create_streams(server, ["flood/victim", "flood/flood"])

    async def victim() -> Outcome:
        clients = Clients(server, [request("POST", server, "flood/victim", BODY)], think_s=0.1, address=VICTIM)
        await clients.open(20)
        try:
            return await clients.run(1, bench.seconds)
        finally:
            clients.close()

    quiet, flooded = [], []
    for _ in range(ROUNDS):
        quiet.append(uvloop.run(victim()))
        with _flooding(server, "flood/flood"):
            flooded.append(uvloop.run(victim()))
    before, during = (statistics.median(percentile(run.latencies_s, 0.99) for run in runs) for runs in (quiet, flooded))
    refused = sum(run.refused for run in flooded)
    panel = "p99 of one identity while another floods"
    bench.note(Row("p99, quiet", "headwater", before * 1000, "ms", panel=panel))
    note = f"{RATE}/s allowed; median of {ROUNDS} rounds; {refused} of the quiet one's were refused"
    bench.note(Row("p99, flooded", "headwater", during * 1000, "ms", during / before, "≤ 2", note, panel))


# Too little memory


def _large_bodies(bench: Bench, server: Server) -> None:
    names = [f"memory/{number}" for number in range(64)]
    create_streams(server, names)
    body = b"[" + b",".join([BODY] * 10_000) + b"]"  # 1 MB
    call(server, "POST", names[0], BODY)
    reads: list[float] = []

    async def flood() -> Outcome:
        clients = Clients(server, [request("POST", server, name, body) for name in names], think_s=0, polite=False)
        await clients.open(256)
        reading = asyncio.ensure_future(_read_on(server, names[0], reads))
        try:
            return await clients.run(0, bench.seconds)
        finally:
            reading.cancel()
            clients.close()

    with _memory_of(server) as most:
        outcome = uvloop.run(flood())
        memory = most()
    began_s = time.perf_counter()
    while b" 204 " not in call(server, "POST", names[0], BODY)[:20]:
        time.sleep(0.01)
    back_s = time.perf_counter() - began_s
    acknowledged = len(outcome.latencies_s) / outcome.seconds
    note = f"the mark is {SMALL_MARK_BYTES // MIB} MiB; {acknowledged:,.0f} MB/s stored, {outcome.refused} refused"
    ratio = memory / SMALL_MARK_BYTES
    bench.note(Row("memory, 256 x 1 MB bodies", "headwater", memory / MIB, "MiB", ratio, "< 1", note))
    note = f"{len(reads)} reads meanwhile, none refused"
    bench.note(Row("p99 of a read meanwhile", "headwater", percentile(reads, 0.99) * 1000, "ms", note=note))
    bench.note(Row("until a write is accepted again", "headwater", back_s * 1000, "ms", goal="at once"))


async def _read_on(server: Server, name: str, taken_s: list[float]) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    while True:
        began_s = time.perf_counter()
        writer.write(request("HEAD", server, name))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"a read was refused: {head[:200]!r}")
        taken_s.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.01)
