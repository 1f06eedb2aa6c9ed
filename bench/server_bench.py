"""The server compared with the Node reference, in one run: in memory with in memory, and durable with both."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.load import (
    Appends,
    append_load,
    call,
    create_streams,
    delivery_load,
    follow,
    read_all,
    read_forever,
    request,
    send,
)
from bench.report import Row
from bench.servers import Server, headwater, reference
from bench.syncing_server import SyncedFile, syncing_server
from headwater.cli.load import percentile

BODY = b'{"pad":"' + b"x" * 90 + b'"}'
SUBSCRIBERS = ((1, 200), (100, 100), (1_000, 40))
CATCH_UP_BYTES = 50_000_000
FORKS = 100

Make = Callable[[], contextlib.AbstractContextManager[Server]]


class Bench:
    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds = seconds
        self.rows: list[Row] = []
        self.samples: list[dict[str, Any]] = []  # figures over time, for the chart of a bench that draws them
        self._say = say
        self._streams = 0

    def note(self, row: Row) -> None:
        self.rows.append(row)
        ratio = f"{row.ratio:6.2f} x  " if row.ratio else ""
        self._say(f"{row.bench:<34} {row.server:<20} {ratio}{row.value:>12,.5g} {row.unit}  {row.note}")

    def appends(self, server: Server, connections: int, streams: int | None = None) -> Appends:
        """Closed-loop appends of 100-byte messages, every connection to streams of its own."""
        self._streams += 1
        names = [f"bench{self._streams}/{number}" for number in range(streams or connections)]
        create_streams(server, names)
        groups = [names[first::connections] or [names[first % len(names)]] for first in range(connections)]
        return uvloop.run(append_load(server, groups, BODY, self.seconds))

    def compare_appends(
        self, makes: dict[str, Make], connections: int, streams: int, goals: dict[str, str] | None = None
    ) -> None:
        appends: dict[str, list[Appends]] = {name: [] for name in makes}
        for _ in range(3):  # alternating, so that a slow phase of the machine affects all servers
            for name, make in makes.items():
                with make() as server:
                    appends[name].append(self.appends(server, connections, streams))
        best = {name: max(runs, key=lambda run: run.per_second) for name, runs in appends.items()}
        ours, *peers = best
        title = f"appends, {connections} connections, {streams} stream{'s' if streams > 1 else ''}"
        for name, run in best.items():
            ratio = best[ours].per_second / run.per_second if name in peers else None
            note = f"p50 {run.latency_ms(0.5):.2f} ms, p99 {run.latency_ms(0.99):.2f} ms"
            self.note(Row(title, name, run.per_second, "/s", ratio, (goals or {}).get(name, ""), note))

    def fill(self, server: Server, name: str, size: int) -> None:
        call(server, "PUT", name)
        body = b"[" + b",".join([BODY] * 5_000) + b"]"
        for _ in range(-(-size // len(body))):
            call(server, "POST", name, body)

    def catch_up(self, server: Server, name: str, runs: int) -> float:
        """The best rate of some runs, in MB/s of body."""
        return max(size / seconds / 1e6 for size, seconds in (read_all(server, name) for _ in range(runs)))

    def compare_catch_up(self, makes: dict[str, Make], goal: str) -> None:
        rates = {}
        for name, make in makes.items():
            with make() as server:
                self.fill(server, "catch-up", CATCH_UP_BYTES)
                rates[name] = self.catch_up(server, "catch-up", 5 if "node" not in name else 2)
        ours, *peers = rates
        for name, rate in rates.items():
            ratio = rates[ours] / rate if name in peers else None
            self.note(Row("catch-up of 50 MB JSON", name, rate, "MB/s", ratio, goal if ratio else ""))

    def compare_delivery(self, makes: dict[str, Make]) -> None:
        for subscribers, messages in SUBSCRIBERS:
            deliveries = {}
            for name, make in makes.items():
                with make() as server:
                    call(server, "PUT", "live")
                    deliveries[name] = uvloop.run(delivery_load(server, "live", subscribers, messages, 0.02))
            ours, *peers = deliveries
            for share in (0.5, 0.99):
                best = percentile(deliveries[ours], share)
                for name, delays in deliveries.items():
                    value = percentile(delays, share)
                    ratio = value / best if name in peers else None
                    title = f"SSE delivery p{share * 100:.0f}, {subscribers} subscribers"
                    self.note(Row(title, name, value * 1000, "ms", ratio))

    def compare_idle(self, makes: dict[str, Make], counts: dict[str, int]) -> None:
        async def hold(server: Server, count: int) -> float:
            before = server.memory_bytes()
            transports = await follow(server, "idle", count, {})
            await asyncio.sleep(1)
            grown = server.memory_bytes() - before
            for transport in transports:
                transport.close()
            return grown / count

        sizes = {}
        for name, make in makes.items():
            with make() as server:
                call(server, "PUT", "idle")
                sizes[name] = uvloop.run(hold(server, counts[name]))
        ours, *peers = sizes
        for name, size in sizes.items():
            ratio = size / sizes[ours] if name in peers else None
            note = f"{counts[name]:,} idle SSE connections"
            self.note(Row("memory per idle subscriber", name, size / 1024, "KiB", ratio, note=note))


@contextlib.contextmanager
def durable(*options: str) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as directory,
        headwater("--data-dir", f"{directory}/data", *options) as server,
    ):
        yield server


@contextlib.contextmanager
def node_files() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, reference(directory) as server:
        yield server


def memory() -> contextlib.AbstractContextManager[Server]:
    return headwater("--memory")


def run_memory(bench: Bench) -> None:
    makes: dict[str, Make] = {"headwater in memory": memory, "node in memory": reference}
    bench.compare_appends(makes, 1, 1)
    bench.compare_appends(makes, 64, 64, {"node in memory": "≥ 2.5"})
    bench.compare_appends(makes, 256, 256)
    bench.compare_catch_up(makes, "≥ 20")
    bench.compare_delivery(makes)
    bench.compare_idle(makes, {"headwater in memory": 10_000, "node in memory": 2_000})


def run_durable(bench: Bench) -> None:
    makes: dict[str, Make] = {"headwater": durable, "node in memory": reference, "node file-backed": node_files}
    goals = {"node in memory": "≥ 3", "node file-backed": "≥ 30"}
    one_connection(bench)
    bench.compare_appends(makes, 1, 1)
    bench.compare_appends(makes, 64, 64, goals)
    bench.compare_appends(makes, 64, 1, goals)
    del makes["node file-backed"]  # it answers 404 for some of 256 streams
    bench.compare_appends(makes, 256, 256)
    fifty_writers(bench)
    many_streams(bench)
    cold_catch_up(bench)
    fork_chain(bench)
    disturbed(bench)


def one_connection(bench: Bench) -> None:
    """Appends that wait for each other, beside a program that only writes and syncs as many bytes, which is the rate of
    the disk, and beside a server that does that for each request, which is the most that a server can reach."""
    ours, bare, syncs = [], [], []
    for _ in range(5):
        syncs.append(_syncs_per_s(min(1.0, bench.seconds)))
        with syncing_server() as server:
            bare.append(uvloop.run(append_load(server, [["one"]], BODY, bench.seconds)))
        with durable() as server:
            ours.append(bench.appends(server, 1))
    appends, answers = (statistics.median(run.per_second for run in runs) for runs in (ours, bare))
    rate = statistics.median(syncs)
    title = "appends, 1 connection, of the rate of the disk"
    notes = [f"p50 {statistics.median(run.latency_ms(0.5) for run in runs):.2f} ms" for runs in (ours, bare)]
    bench.note(Row(title, "headwater", appends, "/s", appends / rate, "≥ 0.9", notes[0]))
    bench.note(Row(title, "write and fdatasync", rate, "/s", note=f"{1000 / rate:.2f} ms"))
    title = "appends, 1 connection, of a server that only syncs"
    bench.note(Row(title, "headwater", appends, "/s", appends / answers, "≥ 0.7", notes[0]))
    bench.note(Row(title, "receive, write, fdatasync, send", answers, "/s", note=notes[1]))


def _syncs_per_s(seconds: float) -> float:
    """How often a second the disk of the data directories writes and syncs a batch of one append."""
    file = SyncedFile(str(Path.cwd()))
    count, started_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - started_s) < seconds:
        file.append(BODY)
        count += 1
    file.close()
    return count / took_s


def fifty_writers(bench: Bench) -> None:
    with durable() as server:
        run = max((bench.appends(server, 50) for _ in range(3)), key=lambda run: run.per_second)
    bench.note(Row("50 writers", "headwater", run.per_second, "/s", goal="≥ 25,000"))
    latency = "50 writers, latency"
    published = "Rust server published: 1.5"
    bench.note(Row("50 writers p50", "headwater", run.latency_ms(0.5), "ms", goal=published, panel=latency))
    bench.note(Row("50 writers p99", "headwater", run.latency_ms(0.99), "ms", goal="< 6.4", panel=latency))


def many_streams(bench: Bench) -> None:
    """The cost of an append must not depend on how many streams there are."""
    for streams in (1, 100, 10_000, 100_000):
        with durable() as server:
            run = bench.appends(server, 64, streams)
        note = f"p99 {run.latency_ms(0.99):.2f} ms"
        title = f"appends over {streams:,} streams"
        bench.note(
            Row(title, "headwater", run.per_second, "/s", goal="flat", note=note, panel="appends, 64 connections")
        )


def cold_catch_up(bench: Bench) -> None:
    """Read data that is folded and was never in the memory of this process."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        data_dir = f"{directory}/data"
        with headwater("--data-dir", data_dir, "--limit", "fold_idle_s=0.5") as server:
            bench.fill(server, "cold", 500_000_000)
            while any(Path(data_dir, "journal").glob("0*.journal")):  # until all of it is folded
                time.sleep(0.1)
        with headwater("--data-dir", data_dir) as server:
            started_s = time.perf_counter()
            rate = bench.catch_up(server, "cold", 3)
            took_s = time.perf_counter() - started_s
    bench.note(
        Row("catch-up of 500 MB cold", "headwater", rate, "MB/s", goal="≥ 500", note=f"{took_s:.1f} s for three")
    )


def fork_chain(bench: Bench) -> None:
    """A read of folded bytes through a chain of forks, beside the same bytes in one stream."""
    body = b"[" + b",".join([BODY] * 20) + b"]"
    with durable("--limit", "fold_idle_s=0.5") as server:
        call(server, "PUT", "plain")
        for number in range(FORKS):
            source = f"stream-forked-from: /v1/stream/f{number - 1}\r\n" if number else ""
            send(server, request("PUT", server, f"f{number}", headers=f"{source}connection: close\r\n"))
            for name in (f"f{number}", "plain"):
                call(server, "POST", name, body)
        server.wait_until_folded()
        times = {name: [read_all(server, name) for _ in range(50)] for name in (f"f{FORKS - 1}", "plain")}
    if len({size for runs in times.values() for size, _ in runs}) != 1:
        raise RuntimeError("the chain has other bytes than the plain stream")
    chain, plain = (statistics.median(seconds for _, seconds in runs) * 1000 for runs in times.values())
    title = f"read through {FORKS} forks"
    bench.note(Row(title, "headwater", chain, "ms", plain / chain, "≥ 0.12"))
    bench.note(Row(title, "headwater, one stream", plain, "ms"))


def disturbed(bench: Bench) -> None:
    """Appends while others read. The goal is half of the rate without readers."""
    with durable() as server:
        alone = bench.appends(server, 64).per_second
    panel = "appends while others read"
    bench.note(Row("appends without readers", "headwater", alone, "/s", panel=panel))

    async def with_followers(server: Server, names: list[str]) -> Appends:
        transports = [await follow(server, names[number % len(names)], 1, {}) for number in range(100)]
        run = await append_load(server, [[name] for name in names], BODY, bench.seconds)
        for group in transports:
            group[0].close()
        return run

    with durable() as server:
        names = [f"followed/{number}" for number in range(64)]
        create_streams(server, names)
        run = uvloop.run(with_followers(server, names))
    share = run.per_second / alone
    bench.note(Row("appends with 100 SSE subscribers", "headwater", run.per_second, "/s", share, "≥ 0.5", panel=panel))
    with durable() as server:
        bench.fill(server, "old", 50_000_000)
        with read_forever(server, "old", 16) as rates:
            run = bench.appends(server, 64)
            read = rates()
    share = run.per_second / alone
    note = f"they read {read:,.0f} MB/s"
    bench.note(Row("appends with 16 catch-up readers", "headwater", run.per_second, "/s", share, "≥ 0.5", note, panel))
