"""Tables compared with streams on one server: appends, cold reads, seeks, and many followers of one table."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.load import STREAMS, TABLES, Appends, Wire, append_load, call, create_streams, delivery_load, read_rows
from bench.report import Row
from bench.server_bench import BODY, Bench, durable
from bench.servers import ROOT, Server, headwater
from headwater.cli.load import percentile

ROWS_SMALL, ROWS_LARGE = 10_000, 10_000_000
ROWS_PER_APPEND = 50_000
ROUNDS = 5
SEEKS = 300
FOLLOWERS, DELIVERIES = 1_000, 40


def run_tables(bench: Bench) -> None:
    compare_appends(bench)
    with filled() as server:
        cold_reads(bench, server)
        seeks(bench, server)
    followers(bench)


def compare_appends(bench: Bench) -> None:
    """The same message as a record of a table and as a message of a stream, alternating."""
    wires = {"headwater": TABLES, "headwater streams": STREAMS}
    appends: dict[str, list[Appends]] = {name: [] for name in wires}
    for number in range(ROUNDS):
        for name, wire in wires.items() if number % 2 else reversed(wires.items()):
            with durable() as server:
                appends[name].append(_appends(server, wire, bench.seconds))
    best = {name: max(runs, key=lambda run: run.per_second) for name, runs in appends.items()}
    ratio = best["headwater"].per_second / best["headwater streams"].per_second
    for name, run in best.items():
        note = f"p50 {run.latency_ms(0.5):.2f} ms, p99 {run.latency_ms(0.99):.2f} ms"
        theirs = name != "headwater"
        bench.note(
            Row(
                "row appends, 64 connections",
                name,
                run.per_second,
                "/s",
                ratio if theirs else None,
                "≥ 0.8" if theirs else "",
                note,
            )
        )


def _appends(server: Server, wire: Wire, seconds: float) -> Appends:
    names = [f"bench/{number}" for number in range(64)]
    create_streams(server, names, wire)
    return uvloop.run(append_load(server, [[name] for name in names], wire.message + BODY, seconds, wire))


@contextlib.contextmanager
def filled() -> Iterator[Server]:
    """A server that was just started with a small and a large table, whose rows were never in its memory."""
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        data_dir = f"{directory}/data"
        with headwater("--data-dir", data_dir, "--limit", "fold_idle_s=0.5") as server:
            for name, rows in (("small", ROWS_SMALL), ("large", ROWS_LARGE)):
                call(server, "PUT", name, wire=TABLES)
                for first in range(0, rows, ROWS_PER_APPEND):
                    keys = range(first, min(rows, first + ROWS_PER_APPEND))
                    call(server, "POST", name, b"".join(b"+\tsku-%d\t19.99\n" % key for key in keys), TABLES)
            while any(Path(data_dir, "journal").glob("0*.journal")):  # until all of it is folded
                time.sleep(0.1)
        with headwater("--data-dir", data_dir) as server:
            yield server


def cold_reads(bench: Bench, server: Server) -> None:
    runs = [read_rows(server, "large?timeout=0") for _ in range(3)]
    if any(rows != ROWS_LARGE for rows, _ in runs):
        raise RuntimeError(f"of {ROWS_LARGE} rows {[rows for rows, _ in runs]} arrived")
    first, best = runs[0][0] / runs[0][1], max(rows / seconds for rows, seconds in runs)
    note = f"first read {first / 1e6:.2f} million/s"
    bench.note(Row(f"read of {ROWS_LARGE:,} cold rows", "headwater", best, "rows/s", goal="≥ 3,000,000", note=note))


def seeks(bench: Bench, server: Server) -> None:
    """The time from a request for one row at a random place to its response, each on a new connection."""
    chance = random.Random(13)
    for name, rows in (("small", ROWS_SMALL), ("large", ROWS_LARGE)):
        taken_s = []
        for _ in range(SEEKS):
            seqno = chance.randrange(rows)
            count, seconds = read_rows(server, f"{name}?since_id={seqno}&until_id={seqno + 1}")
            if count != 1:
                raise RuntimeError(f"{count} rows for one SeqNo")
            taken_s.append(seconds)
        note = f"p99 {percentile(taken_s, 0.99) * 1000:.2f} ms"
        value = percentile(taken_s, 0.5) * 1000
        bench.note(Row(f"one row of {rows:,}", "headwater", value, "ms", note=note, panel="seek to a SeqNo, p50"))


def followers(bench: Bench) -> None:
    """Delivery of rows to a thousand open responses, compared with as many readers of a stream."""
    deliveries = {}
    for name, wire in (("headwater", TABLES), ("headwater streams", STREAMS)):
        with durable() as server:
            call(server, "PUT", "live", wire=wire)
            deliveries[name] = uvloop.run(delivery_load(server, "live", FOLLOWERS, DELIVERIES, 0.05, wire))
    for share in (0.5, 0.99):
        ours = percentile(deliveries["headwater"], share)
        for name, delays in deliveries.items():
            value = percentile(delays, share)
            ratio = value / ours if name != "headwater" else None
            bench.note(Row(f"delivery p{share * 100:.0f}, {FOLLOWERS:,} followers", name, value * 1000, "ms", ratio))
