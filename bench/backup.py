"""Backups: the speed of full and incremental ones, the lag of a continuous one, and its effect on appends.

python -m bench.backup [--mebibytes 512] [--seconds 3] [--rounds 3] [--out bench/results]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.history import save
from bench.load import append_load, call, create_streams
from bench.machine import describe_machine
from bench.servers import Server, headwater
from headwater.store.embedded.backup.backing_up import open_backup
from headwater.store.embedded.backup.failures import BackupError
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.status import spans_of
from headwater.store.embedded.backup.targets import DirectoryTarget

MIB = 1024 * 1024
CONNECTIONS = 64
BASE_EVERY_S = 86_400.0
BODY = b'{"text":"%s"}' % (b"x" * 89)


def backed_up(directory: Path, target: Path) -> float:
    """Back up once, and return the seconds."""
    started_s = time.perf_counter()
    with open_backup(directory, DirectoryTarget(target)) as backup:
        backup.step(BASE_EVERY_S)
    return time.perf_counter() - started_s


def restored(target: Path, directory: Path) -> float:
    started_s = time.perf_counter()
    restore(DirectoryTarget(target), directory, None, lambda *_: None)
    return time.perf_counter() - started_s


def settle(directory: Path) -> None:
    """Wait until everything is folded."""
    while any((directory / "journal").glob("0*.journal")):
        time.sleep(0.1)


def fill(server: Server, name: str, mebibytes: int) -> None:
    for _ in range(mebibytes):
        answer = call(server, "POST", name, b'"%s"' % os.urandom(MIB // 2).hex().encode())  # compressible to a half
        if b" 204 " not in answer[:20] and b" 200 " not in answer[:20]:
            raise RuntimeError(answer[:200])


@contextlib.contextmanager
def following(directory: Path, target: Path) -> Iterator[None]:
    arguments = ["backup", str(directory), str(target), "--follow"]
    process = subprocess.Popen([sys.executable, "-m", "headwater", *arguments], stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the backup did not start")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


async def load(server: Server, seconds: float, target: Path | None) -> tuple[float, list[float]]:
    """Appends per second, and the lag of the backup in seconds, measured ten times per second."""
    names = [f"load/{number}" for number in range(CONNECTIONS)]
    appending = asyncio.create_task(append_load(server, [[name] for name in names], BODY, seconds))
    behind: list[float] = []
    while not appending.done():
        await asyncio.sleep(0.1)
        if target is not None:
            with contextlib.suppress(BackupError):
                behind.append(
                    time.time() - (await asyncio.to_thread(spans_of, DirectoryTarget(target)))[-1].to_ms / 1000
                )
    return (await appending).per_second, behind


class Figures(dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        print(name, value, file=sys.stderr, flush=True)
        super().__setitem__(name, value)


def measure(work: Path, mebibytes: int, seconds: float, rounds: int) -> dict[str, Any]:
    directory, target = work / "data", work / "target"
    figures = Figures({"machine": describe_machine(), "mebibytes": mebibytes})
    with headwater("--data-dir", str(directory)) as server:
        create_streams(server, ["big", *(f"load/{number}" for number in range(CONNECTIONS))])
        fill(server, "big", mebibytes)
        settle(directory)
        figures["full_mib_per_s"] = mebibytes / backed_up(directory, target)
        figures["unchanged_s"] = backed_up(directory, target)
        fill(server, "big", max(1, mebibytes // 100))
        settle(directory)
        figures["one_percent_s"] = backed_up(directory, target)
        alone, beside, behind = [], [], []
        for _ in range(rounds):
            alone.append(uvloop.run(load(server, seconds, None))[0])
            with following(directory, target):
                time.sleep(2)
                rate, seen = uvloop.run(load(server, seconds, target))
            beside.append(rate)
            behind += seen
        figures |= {
            "appends_per_s": statistics.median(alone),
            "appends_per_s_beside": statistics.median(beside),
            "ratio": statistics.median(beside) / statistics.median(alone),
            "behind_p50_s": statistics.median(behind),
            "behind_max_s": max(behind),
        }
        backed_up(directory, target)
    figures["restore_mib_per_s"] = mebibytes / restored(target, work / "copy")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        figures = measure(Path(work), options.mebibytes, options.seconds, options.rounds)
    print(json.dumps(figures, indent=2))
    if options.out is not None:
        save("backup", figures, options.out)


if __name__ == "__main__":
    main()
