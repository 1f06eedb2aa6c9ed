"""A chain of three servers, A to B to C, each following the one before, while B and C are killed."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.edges import free_port

CHANGES = 5_000
KILLS = 6
TYPE = {"content-type": "text/sequence; charset=utf-8; schema=chain; version=1"}


class Link:
    """A server process on a fixed port, which follows the table of the one before."""

    def __init__(self, directory: Path, before: Link | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self.follow = [] if before is None else ["--follow", f"t={before.url}"]
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/table/t"

    @property
    def followers(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/table/__stp/followers"

    def start(self) -> None:
        command = [sys.executable, "-m", "headwater", "serve", "--data-dir", str(self.directory)]
        command += ["--port", str(self.port), "--limit", "segment_bytes=300000", "--limit", "fold_idle_s=0.2"]
        self.process = subprocess.Popen([*command, *self.follow], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "http://" in self.process.stdout.readline(), "the server did not come back"

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process.stdout.close()
        self.process = None
        return code


@contextlib.contextmanager
def chain(directory: Path) -> Iterator[tuple[Link, Link, Link]]:
    a = Link(directory / "a")
    b = Link(directory / "b", a)
    c = Link(directory / "c", b)
    links = (a, b, c)
    try:
        for link in links:
            link.start()
        httpx.put(a.url, headers=TYPE).raise_for_status()
        yield links
    finally:
        for link in links:
            if link.process is not None:
                link.end(signal.SIGKILL)


def write(a: Link, moments: random.Random) -> None:
    """Append changes in batches of various sizes, for some seconds."""
    written = 0
    with httpx.Client() as client:
        while written < CHANGES:
            count = min(CHANGES - written, moments.choice((1, 1, 1, 2, 5, 20, 100)))
            body = "".join(
                f"-\tk{number % 97}\t\n" if number % 7 == 0 else f"+\tk{number % 97}\t{number} {'x' * (number % 300)}\n"
                for number in range(written, written + count)
            )
            client.post(a.url, content=body, headers=TYPE).raise_for_status()
            written += count
            time.sleep(moments.random() * 0.05)


def wait_for(link: Link, seqno: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        answer = httpx.head(link.url)
        if answer.status_code == 200 and int(answer.headers["stp-last-seqno"]) >= seqno:
            return
        time.sleep(0.02)
    pytest.fail(f"row {seqno} did not arrive within {within_s} s: {httpx.get(link.followers).text}")


@pytest.mark.slow
def test_every_change_arrives_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(13)
    with chain(tmp_path) as (a, b, c):
        writer = threading.Thread(target=write, args=(a, random.Random(14)))
        writer.start()
        for number in range(KILLS):
            time.sleep(chosen.random() * 0.8)
            victims = chosen.choice(([b], [c], [b, c])) if number > 1 else [(b, c)[number]]
            for victim in victims:
                victim.end(signal.SIGKILL)
            time.sleep(chosen.random() * 0.2)
            for victim in victims:
                victim.start()
        writer.join()
        wait_for(c, CHANGES, 15)
        rows = [httpx.get(link.url, params={"timeout": "0"}).content for link in (a, b, c)]
        assert rows[0].count(b"\n") == CHANGES
        assert rows[2] == rows[0]
        assert rows[1] == rows[0]
        (status,) = httpx.get(c.followers).json()["followers"]
        assert (status["state"], status["last_seqno"], status["lag_rows"]) == ("following", CHANGES, 0)
        for link in (c, b, a):
            assert link.end(signal.SIGTERM) == 0  # followers end with their server


@pytest.mark.slow
def test_a_change_arrives_at_the_end_of_the_chain_without_a_poll(tmp_path: Path) -> None:
    with chain(tmp_path) as (a, _, c), httpx.Client() as client, httpx.Client() as writer:
        client.post(a.url, content="+\tk\t0\n", headers=TYPE).raise_for_status()
        wait_for(c, 1, 15)
        latencies = []
        with client.stream("GET", c.url, params={"since_id": "1"}, timeout=20) as answer:
            lines = answer.iter_lines()
            for number in range(60):
                begun = time.perf_counter()
                writer.post(a.url, content=f"+\tk\t{number}\n", headers=TYPE).raise_for_status()
                assert next(lines).endswith(f"\t{number}")
                latencies.append(time.perf_counter() - begun)
        assert statistics.median(latencies) < 0.2  # some 5 ms, unless the machine is busy
