"""Compare this version with another one, alternating: `python -m bench.compare TREE [--rounds 5] [--seconds 3]`.

TREE is a checkout of the other version, for example one created by `git worktree add`. Each round runs every load
against both, in alternating order. A ratio is the figure of this version divided by that of the other, as the median of
the rounds; above 1 this version is better. CPU seconds are those of the server process, user and system, which depend
less on other work of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from bench.load import append_load, call, create_streams, delivery_load, read_all
from bench.machine import describe_machine
from bench.servers import ROOT, Server, running
from headwater.cli.load import percentile

BODY = b'{"pad":"' + b"x" * 90 + b'"}'
HOT_BYTES = 50_000_000
COLD_BYTES = 200_000_000
READS_MIN = 5
STARTS = 4  # of a server that is read from memory
_CPU_CLOCK = 2  # as in clock_getcpuclockid(3)

Figures = dict[str, float]  # larger is better


@contextlib.contextmanager
def serving(tree: Path, *options: str) -> Iterator[Server]:
    command = ["env", f"PYTHONPATH={tree / 'src'}", sys.executable, "-m", "headwater", "serve", "--port", "0", *options]
    with running("headwater", command) as server:
        yield server


def cpu_s(server: Server) -> float:
    """Of Linux: the clock of another process counts nanoseconds, /proc hundredths of a second."""
    return time.clock_gettime((~server.pid << 3) | _CPU_CLOCK)


def appends(tree: Path, seconds: float, *storage: str) -> Figures:
    with serving(tree, *storage) as server:
        names = [f"bench/{number}" for number in range(64)]
        create_streams(server, names)
        before_s = cpu_s(server)
        run = uvloop.run(append_load(server, [[name] for name in names], BODY, seconds))
        used_s = cpu_s(server) - before_s
    return {"appends/s": run.per_second, "appends per CPU second": run.count / used_s}


def fill(server: Server, name: str, size: int) -> None:
    call(server, "PUT", name)
    body = b"[" + b",".join([BODY] * 5_000) + b"]"
    for _ in range(-(-size // len(body))):
        call(server, "POST", name, body)


def catch_up(server: Server, name: str, seconds: float) -> Figures:
    """Read a stream again and again for a time: one read takes about 10 ms, which says nothing."""
    read_all(server, name)
    until_s = time.monotonic() + seconds
    before_s = cpu_s(server)
    reads: list[tuple[int, float]] = []
    while len(reads) < READS_MIN or time.monotonic() < until_s:
        reads.append(read_all(server, name))
    used_s = cpu_s(server) - before_s
    best = max(size / seconds for size, seconds in reads)
    return {"MB/s": best / 1e6, "MB per CPU second": sum(size for size, _ in reads) / used_s / 1e6}


def memory_catch_up(tree: Path, seconds: float) -> Figures:
    """The best of several starts: how fast a server copies depends on where its memory is, by a factor of 1.5."""
    starts: list[Figures] = []
    for _ in range(STARTS):
        with serving(tree, "--memory") as server:
            fill(server, "hot", HOT_BYTES)
            starts.append(catch_up(server, "hot", seconds / STARTS))
    return {name: max(figures[name] for figures in starts) for name in starts[0]}


def cold_catch_up(tree: Path, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        data_dir = f"{directory}/data"
        with serving(tree, "--data-dir", data_dir, "--limit", "fold_idle_s=0.5") as server:
            fill(server, "cold", COLD_BYTES)
            while any(Path(data_dir, "journal").glob("0*.journal")):  # until all of it is folded
                time.sleep(0.1)
        with serving(tree, "--data-dir", data_dir) as server:
            return catch_up(server, "cold", seconds)


def delivery(tree: Path, seconds: float) -> Figures:
    with serving(tree, "--memory") as server:
        call(server, "PUT", "live")
        before_s = cpu_s(server)
        delays = uvloop.run(delivery_load(server, "live", 200, 60, 0.01))
        used_s = cpu_s(server) - before_s
    return {"1/p50 s": 1 / percentile(delays, 0.5), "deliveries per CPU second": len(delays) / used_s}


def durable_appends(tree: Path, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        return appends(tree, seconds, "--data-dir", f"{directory}/data")


def memory_appends(tree: Path, seconds: float) -> Figures:
    return appends(tree, seconds, "--memory")


LOADS: dict[str, Callable[[Path, float], Figures]] = {
    "durable appends, 64 connections": durable_appends,
    "memory appends, 64 connections": memory_appends,
    "catch-up from memory": memory_catch_up,
    "catch-up from the index": cold_catch_up,
    "SSE delivery, 200 subscribers": delivery,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", default="", help="part of a load's name")
    arguments = parser.parse_args()
    trees = [ROOT, arguments.tree.resolve()]
    for key, value in describe_machine().items():
        print(f"{key}: {value}")
    for title, load in LOADS.items():
        if arguments.only not in title:
            continue
        rounds: dict[Path, list[Figures]] = {tree: [] for tree in trees}
        for number in range(arguments.rounds):
            for tree in trees if number % 2 else reversed(trees):
                rounds[tree].append(load(tree, arguments.seconds))
        ours, theirs = (rounds[tree] for tree in trees)
        for name in ours[0]:
            ratio = statistics.median(one[name] / other[name] for one, other in zip(ours, theirs, strict=True))
            values = [statistics.median(figures[name] for figures in side) for side in (ours, theirs)]
            print(f"{ratio:6.3f}  {title:<34} {name:<28} {values[0]:>12,.0f} {values[1]:>12,.0f}", flush=True)


if __name__ == "__main__":
    main()
