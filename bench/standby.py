"""A warm standby: how far it is behind, what is lost with the machine of the server, and how long a promotion takes.

python -m bench.standby [--seconds 10] [--rate 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from bench.machine import describe_machine
from bench.servers import headwater
from headwater.store.embedded import index
from headwater.store.embedded.backup.standby import source_of

MESSAGE = b"x" * 100
TEXT = {"content-type": "text/plain"}


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of headwater that runs until it is stopped, from its first line on."""
    line = [sys.executable, "-m", "headwater", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{arguments[0]} did not start")
        try:
            yield process
        finally:
            process.kill()


def messages_in(directory: Path) -> int:
    """The messages that a standby has."""
    source = source_of(directory)
    if source is None:
        return 0
    try:
        reader = index.IndexReader(index.connect(directory / "standby" / source.index, write=False))
    except sqlite3.OperationalError:
        return 0
    try:
        return sum(state.tail for state in reader.states()) // len(MESSAGE)
    finally:
        reader.close()


def measure(work: Path, seconds: float, rate: float) -> dict[str, Any]:
    target, to = work / "target", work / "standby"
    acknowledged_s: list[float] = []
    behind_s: list[float] = []
    with (
        headwater("--data-dir", str(work / "data"), "--lease", str(target)) as server,
        command("backup", str(work / "data"), str(target), "--follow") as backup,
        command("restore", str(target), "--to", str(to), "--follow") as standby,
        httpx.Client(base_url=server.url) as client,
    ):
        client.put("/a", headers=TEXT).raise_for_status()
        while source_of(to) is None:
            time.sleep(0.1)
        started_s = looked_s = time.monotonic()
        while (now_s := time.monotonic()) - started_s < seconds:
            client.post("/a", content=MESSAGE, headers=TEXT).raise_for_status()
            acknowledged_s.append(time.monotonic())
            if now_s - looked_s > 0.1:
                there, looked_s = messages_in(to), time.monotonic()
                behind_s.append(looked_s - acknowledged_s[there] if there < len(acknowledged_s) else 0.0)
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - now_s)))
        for pid in (server.pid, backup.pid):  # the machine is gone
            os.kill(pid, signal.SIGKILL)
        lost_s = time.monotonic()
        promoted = [sys.executable, "-m", "headwater", "promote", str(to)]
        subprocess.run(promoted, check=True, stdout=subprocess.DEVNULL)
        promoted_s = time.monotonic()
        standby.send_signal(signal.SIGTERM)
    with headwater("--data-dir", str(to), "--lease", str(target)) as server:
        served_s = time.monotonic()
        kept = int(httpx.head(f"{server.url}/a").headers["stream-next-offset"].rpartition("_")[2]) // len(MESSAGE)
    last_s = acknowledged_s[kept] if kept < len(acknowledged_s) else acknowledged_s[-1]
    return {
        "behind_p50_s": statistics.median(behind_s),
        "behind_max_s": max(behind_s),
        "lost_messages": len(acknowledged_s) - kept,
        "lost_s": acknowledged_s[-1] - last_s,
        "promote_s": promoted_s - lost_s,
        "served_s": served_s - lost_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as work:
            rounds.append(measure(Path(work), options.seconds, options.rate))
    worst = {name: max(one[name] for one in rounds) for name in rounds[0]}
    print(json.dumps({"machine": describe_machine(), "rounds": rounds, "worst": worst}, indent=2))


if __name__ == "__main__":
    main()
