"""A soak test: minutes of load that creates, writes, expires and deletes streams, and kills the server.

python -m bench.soak [--seconds 600] [--window 10] [--kill-every 6] [--out bench/results]

Every window writes to its own streams and deletes those of the previous window, so the amount of live data stays about
the same. Disk, memory and descriptors are recorded after each window. They must level off.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.history import RESULTS, save
from bench.load import append_load, call, create_streams, request
from bench.servers import Server, headwater

BODY = b'{"pad":"' + b"x" * 90 + b'"}'
CONNECTIONS = 50
STREAMS = 500
SHORT_LIVED = 200
SHORT_TTL_S = 5

Window = dict[str, Any]


def disk_bytes(directory: Path) -> int:
    """Blocks in use, as `du` counts them."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def expire_later(server: Server, window: int) -> None:
    """Create streams that expire instead of being deleted."""
    head = f"stream-ttl: {SHORT_TTL_S}\r\n"
    for number in range(SHORT_LIVED):
        call_with(server, "PUT", f"short/{window}/{number}", b"[" + BODY + b"]", head)


def call_with(server: Server, method: str, path: str, body: bytes, headers: str) -> None:
    with socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(request(method, server, path, body, headers + "connection: close\r\n"))
        while sock.recv(1 << 16):
            pass


def run_window(server: Server, window: int, seconds: float) -> Window:
    names = [f"soak/{window}/{number}" for number in range(STREAMS)]
    create_streams(server, names)
    expire_later(server, window)
    groups = [names[first::CONNECTIONS] for first in range(CONNECTIONS)]
    result = uvloop.run(append_load(server, groups, BODY, seconds))
    if window:
        for number in range(STREAMS):
            call(server, "DELETE", f"soak/{window - 1}/{number}")
    return {
        "appends_per_s": round(result.per_second),
        "written_mb": round(result.count * len(BODY) / 1e6, 1),
        "p50_ms": round(result.latency_ms(0.5), 3),
        "p99_ms": round(result.latency_ms(0.99), 3),
        "max_ms": round(result.latency_ms(1.0), 1),
    }


def measure(data_dir: Path, seconds: float, window_s: float, kill_every: int) -> Iterator[Window]:
    started_s = time.monotonic()
    window, before_mb = 0, 0.0
    while time.monotonic() - started_s < seconds:
        with headwater("--data-dir", str(data_dir), "--limit", "expiry_grace_s=1") as server:
            for _ in range(kill_every):
                figures = run_window(server, window, window_s)
                figures |= {
                    "at_s": round(time.monotonic() - started_s, 1),
                    "live_mb": round(before_mb + figures["written_mb"], 1),
                    "disk_mb": round(disk_bytes(data_dir) / 1e6, 1),
                    "memory_mb": round(server.memory_bytes() / 1e6, 1),
                    "descriptors": descriptors(server),
                    "killed": False,
                }
                window, before_mb = window + 1, figures["written_mb"]
                if time.monotonic() - started_s >= seconds:
                    yield figures
                    return
                if window % kill_every == 0:
                    os.kill(server.pid, signal.SIGKILL)
                    figures["killed"] = True
                yield figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--kill-every", type=int, default=6, help="windows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    windows: list[Window] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        data_dir = Path(directory) / "data"
        for figures in measure(data_dir, arguments.seconds, arguments.window, arguments.kill_every):
            windows.append(figures)
            print(json.dumps(figures), flush=True)
    save("soak", {"windows": windows}, arguments.out)


if __name__ == "__main__":
    main()
