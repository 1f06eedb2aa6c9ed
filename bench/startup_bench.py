"""Start-up: the processor time of commands, imports and a server until it is ready, beside httpx and rich alone.

Each figure is the median of runs that alternate with those of its yardstick, with bytecode that exists, as after an
installation. Processor time depends less on other work of the machine than wall time.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.load import call
from bench.report import Row
from bench.server_bench import Bench
from bench.servers import ROOT, Server, headwater

RUNS = 15
HTTPX_AND_RICH = "import httpx, rich"
POST = "import httpx, rich; httpx.post({url!r}, content=b'1', headers={{'content-type': 'application/json'}})"


@dataclass(frozen=True)
class Start:
    """A command, and a program of Python that is its yardstick."""

    name: str
    ours: list[str]
    program: str
    goal: str  # for the ratio: 0.83 is 1.2 times as long as the yardstick


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def processor_ms(command: list[str]) -> float:
    """User and system time of a program and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, env=_environment(), timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def compare(bench: Bench, start: Start) -> None:
    commands = (start.ours, [sys.executable, "-c", start.program])
    times: tuple[list[float], list[float]] = ([], [])
    for command in commands:
        processor_ms(command)  # writes bytecode
    for _ in range(RUNS):
        for command, measured in zip(commands, times, strict=True):
            measured.append(processor_ms(command))
    ours, theirs = map(statistics.median, times)
    note = f"processor time, least {min(times[0]):.0f} ms"
    bench.note(Row(start.name, "headwater", ours, "ms", theirs / ours, start.goal, note))
    bench.note(Row(start.name, "python with httpx and rich", theirs, "ms", note=f"least {min(times[1]):.0f} ms"))


def run_startup(bench: Bench) -> None:
    program = [sys.executable, "-m", "headwater"]
    compare(bench, Start("headwater --version", [*program, "--version"], HTTPX_AND_RICH, "≥ 0.83"))
    client = [sys.executable, "-c", "import headwater.client"]
    compare(bench, Start("import headwater.client", client, HTTPX_AND_RICH, "≥ 0.7"))
    with headwater("--memory") as server:
        call(server, "PUT", "started")
        url = f"{server.scheme}://{server.host}:{server.port}"
        post = POST.format(url=f"{server.url}/started")
        options = ["started", "--url", url]
        compare(bench, Start("headwater append of one message", [*program, "append", *options, "1"], post, "≥ 0.4"))
        compare(bench, Start("headwater read of a small stream", [*program, "read", *options], post, "≥ 0.4"))
    serve_until_ready(bench)


def serve_until_ready(bench: Bench) -> None:
    processor_ms([sys.executable, "-c", "import headwater.cli.serve, headwater.server.serve"])  # writes bytecode
    times: list[float] = []
    for _ in range(RUNS):
        with headwater("--memory") as server:
            times.append(lived_ms(server))
    title, note = "headwater serve until it is ready", f"processor time, least {min(times):.0f} ms"
    bench.note(Row(title, "headwater", statistics.median(times), "ms", goal="≤ 400", note=note))


def lived_ms(server: Server) -> float:
    """The processor time of all threads of a server so far; the kernel counts nanoseconds here."""
    tasks = Path(f"/proc/{server.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6
