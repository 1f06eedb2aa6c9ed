"""Servers under test, each in a separate process that ends with the bench."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
NODE_DIR = ROOT / "tests" / "node"

FOLD_S = 120  # the time in which the fold must finish; it takes seconds


@dataclass(frozen=True)
class Server:
    name: str
    host: str
    port: int
    pid: int
    scheme: str = "http"
    token: str = ""  # of the caller

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/v1/stream"

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        if match is None:
            raise RuntimeError("no VmRSS in /proc: is this Linux?")
        return int(match[1]) * 1024

    def wait_until_folded(self) -> None:
        """Wait until the index has the whole journal, so that a bench of reads does not measure the fold as well."""
        ends = time.monotonic() + FOLD_S
        while left := self.metric("headwater_journal_unfolded_bytes"):
            if time.monotonic() > ends:
                raise TimeoutError(f"{left:,.0f} bytes of the journal are not folded after {FOLD_S} s")
            time.sleep(0.2)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.scheme}://{self.host}:{self.port}/metrics", timeout=30) as response:
            match = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
        if match is None:
            raise RuntimeError(f"the server has no metric {name}")
        return float(match[1])


@contextlib.contextmanager
def running(name: str, command: list[str], cwd: Path | None = None) -> Iterator[Server]:
    """Start a server that prints its URL when ready, and stop it afterwards."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        if process.stdout is None:
            raise RuntimeError("no standard output to read from")
        for line in process.stdout:
            if match := re.search(r"https?://\S+", line):
                break
        else:
            raise RuntimeError(f"{name} ended before it was ready")
        parts = urlsplit(match[0])
        yield Server(name, parts.hostname or "", parts.port or 0, process.pid, parts.scheme)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def headwater(*options: str) -> contextlib.AbstractContextManager[Server]:
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", *options]
    return running("headwater", command)


def reference(data_dir: str | None = None) -> contextlib.AbstractContextManager[Server]:
    name = "node file-backed" if data_dir else "node in memory"
    return running(name, ["node", "reference.mjs", *([data_dir] if data_dir else [])], cwd=NODE_DIR)
