"""State: how many events per second one core folds, and how long a StreamDB takes to start."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import ROOT, headwater
from bench.state_load import KEYS
from headwater.state import MaterializedState, decode_events

RUNS = 5
BATCH = 20_000


def run_state(bench: Bench) -> None:
    _fold(bench)
    _preload(bench)


def _fold(bench: Bench) -> None:
    """Fold batches of the size that a read delivers, over ten thousand keys of two types."""
    texts = []
    for first in range(0, 200_000, BATCH):
        events = [
            {
                "type": "user" if number % 3 else "order",
                "key": str(number * 7_919 % KEYS),
                "value": {"id": number, "name": f"customer {number}", "active": True},
                "headers": {"operation": "delete" if number % 10 == 0 else "update", "txid": str(number)},
            }
            for number in range(first, first + BATCH)
        ]
        texts.append(json.dumps(events).encode())

    def from_bytes() -> None:
        state = MaterializedState()
        for text in texts:
            state.apply_batch(decode_events(text))  # type: ignore[arg-type]

    def note(what: str, work: Callable[[], None], goal: int) -> None:
        rate = BATCH * len(texts) / min(_timed(work) for _ in range(RUNS))
        bench.note(Row(f"fold from {what}", "headwater", rate, "events/s", None, f">= {goal:,}"))

    note("JSON bytes", from_bytes, 500_000)
    decoded: list[list[Any]] = [decode_events(text) for text in texts]

    def from_events() -> None:
        state = MaterializedState()
        for events in decoded:
            state.apply_batch(events)

    note("decoded events", from_events, 1_000_000)


def _timed(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _preload(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as directory, headwater("--data-dir", f"{directory}/data") as server:
        url, checkpoint = f"{server.url}/rows", str(Path(directory) / "checkpoint")
        _work("fill", url, checkpoint)
        _work("save", url, checkpoint)
        _work("publish", url, checkpoint)
        runs = {
            how: min((_work(how, url, checkpoint) for _ in range(3)), key=lambda run: run["seconds"]) for how in HOW
        }
        whole = runs["replay"]["seconds"]
        for how, run in runs.items():
            ratio = None if how == "replay" else whole / run["seconds"]
            note = (
                f"peak {run['peak_bytes'] / 1e6:.0f} MB, {run['events']:,.0f} events read; ratio: full replay over this"
            )
            bench.note(
                Row(
                    f"preload, {HOW[how]}",
                    "headwater",
                    run["seconds"],
                    "s",
                    ratio,
                    "",
                    note if ratio else note.split(";")[0],
                    "preload",
                )
            )


HOW = {"replay": "full replay", "snapshot": "from a snapshot", "checkpoint": "from a checkpoint"}


def _work(how: str, url: str, checkpoint: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.state_load", how, url, checkpoint]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(ran.stdout) if ran.stdout else {}
    return figures
