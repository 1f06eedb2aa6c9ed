"""Our client compared with the official Python client, with our server in memory, in one run."""

from __future__ import annotations

import json
import subprocess
import sys

import durable_streams

from bench.load import call
from bench.report import Row
from bench.server_bench import Bench
from bench.servers import ROOT, Server, headwater

RUNS = 3
OFFICIAL = "official client"
PRODUCERS = {"headwater": "ours", "headwater, async": "ours_async", f"{OFFICIAL}, async": "official"}
READERS = {
    "headwater": "ours",
    "headwater, async": "ours_async",
    OFFICIAL: "official",
    f"{OFFICIAL}, async": "official_async",
}


def run_client(bench: Bench) -> None:
    with headwater("--memory") as server:
        how = (
            "its producer"
            if hasattr(durable_streams, "IdempotentProducer")
            else "batched appends: no producer released"
        )
        _compare(bench, server, "producer, server in memory", "produce", PRODUCERS, {f"{OFFICIAL}, async": how})
        _compare(bench, server, "catch-up, server in memory", "read", READERS, {})


def _compare(
    bench: Bench, server: Server, title: str, what: str, contenders: dict[str, str], notes: dict[str, str]
) -> None:
    best: dict[str, dict[str, float]] = {}
    for turn in range(RUNS):  # alternating, so that a slow phase of the machine affects all clients
        for name, who in contenders.items():
            stream = "full" if what == "read" else f"{who}-{turn}"
            if what == "produce":
                call(server, "PUT", stream)
            elif turn == 0 and name == "headwater":
                call(server, "PUT", stream)
                _work("ours", "produce", f"{server.url}/{stream}")
            figures = _work(who, what, f"{server.url}/{stream}")
            if figures["per_second"] > best.get(name, {"per_second": 0.0})["per_second"]:
                best[name] = figures
            if what == "produce":
                call(server, "DELETE", stream)
    for name, figures in best.items():
        ours = (
            best["headwater" + name.removeprefix(OFFICIAL)] if name.startswith(OFFICIAL) else None
        )  # async with async
        ratio = None if ours is None else ours["per_second"] / figures["per_second"]
        note = "; ".join(filter(None, (f"peak {figures['peak_bytes'] / 1e6:.0f} MB", notes.get(name))))
        bench.note(Row(title, name, figures["per_second"], "messages/s", ratio, ">= 2" if ratio else "", note))


def _work(who: str, what: str, url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.client_load", who, what, url]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures
