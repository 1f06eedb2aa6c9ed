"""Whole processes: a server with a lease, its backup, a standby and its promotion, under load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.edges import free_port
from tests.fault.test_backups import Following
from tests.waiting import PROGRAM_LIMIT_S, wait_until

LEASE_S = 10  # a busy machine renews it in time
JSON = {"content-type": "application/json"}


class Process:
    """A command of headwater, from its first line on."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headwater", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PROGRAM_LIMIT_S)
        return self.process.returncode, err


def serve(directory: Path, target: str, port: int) -> Process:
    limit = ("--limit", f"lease_s={LEASE_S}")
    process = Process("serve", "--data-dir", str(directory), "--port", str(port), "--lease", target, *limit)
    assert "serving" in process.first, process.end()
    return process


class Writer:
    """Appends numbers until a write is refused for lack of the lease."""

    def __init__(self, url: str) -> None:
        self.acknowledged = 0
        self.problem = ""
        self._url = url
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self.problem:
                answer = client.post(self._url, json=self.acknowledged)
                if answer.status_code == 503:
                    self.problem = answer.json()["type"].rpartition(":")[2]
                else:
                    assert answer.status_code == 204
                    self.acknowledged += 1


def numbers(url: str) -> list[int]:
    """All messages of a stream."""
    messages, offset = list[int](), "-1"
    while True:
        answer = httpx.get(url, params={"offset": offset}, timeout=30)
        messages += json.loads(answer.content)
        if "stream-up-to-date" in answer.headers:
            return messages
        offset = answer.headers["stream-next-offset"]


@pytest.fixture
def started() -> Iterator[list[Process | Following]]:
    """The processes of a test, which do not outlive it."""
    processes: list[Process | Following] = []
    yield processes
    for one in processes:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


@pytest.mark.slow
def test_a_promoted_standby_is_the_only_writer(tmp_path: Path, started: list[Process | Following]) -> None:
    target, to, port, other = str(tmp_path / "target"), tmp_path / "standby", free_port(), free_port()
    old = serve(tmp_path / "data", target, port)
    started.append(old)
    url = f"http://127.0.0.1:{port}/v1/stream/a"
    assert httpx.put(url, headers=JSON).status_code == 201
    backup = Following(tmp_path / "data", target)
    following = Process("restore", target, "--to", str(to), "--follow", "--every", "0.1")
    started += [backup, following]
    writer = Writer(url)
    writer.thread.start()
    wait_until(lambda: writer.acknowledged > 100)
    wait_until(lambda: (to / "standby" / "standby.json").exists())
    command = [sys.executable, "-m", "headwater", "promote", str(to)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)
    acknowledged = writer.acknowledged
    assert ran.returncode == 0, ran.stderr
    assert f"promoted {to}" in ran.stdout
    writer.thread.join(60)
    assert writer.problem == "lease-lost"
    assert writer.acknowledged <= acknowledged + 1  # whose answer was on its way
    ready = httpx.get(f"http://127.0.0.1:{port}/readyz")
    assert ready.status_code == 503
    assert "the lease" in ready.json()["detail"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "headwater_lease_held 0.0" in metrics
    assert "headwater_ready 0.0" in metrics
    following.process.communicate(timeout=PROGRAM_LIMIT_S)
    assert following.process.returncode == 0
    new = serve(to, target, other)
    started.append(new)
    kept = numbers(f"http://127.0.0.1:{other}/v1/stream/a")
    assert kept == list(range(len(kept)))
    assert 100 < len(kept) <= writer.acknowledged
    assert httpx.post(f"http://127.0.0.1:{other}/v1/stream/a", json=len(kept)).status_code == 204
    assert backup.end(signal.SIGTERM)[0] == 0
    assert old.end()[0] == 0
    restarted = serve(tmp_path / "data", target, port)  # the old machine comes back
    started.append(restarted)
    assert httpx.post(url, json=-1).status_code == 503
    assert numbers(url)[: len(kept)] == kept
    assert restarted.end()[0] == 0
    code, err = new.end()
    assert (code, "lost" in err) == (0, False)
