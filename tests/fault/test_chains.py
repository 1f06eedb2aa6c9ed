"""A chain of three servers, A to B to C, each following the one before, while B and C are killed.

NURLs are not configured: each follower registers by its handshake. `CHANGES=100000` makes it a long run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.edges import free_port
from tests.public_urls import program as program_at
from tests.waiting import wait_for, wait_until

CHANGES = int(os.environ.get("CHANGES", "5000"))
KILLS = 6  # minimum; kills continue as long as there are changes
TYPE = {"content-type": "text/sequence; charset=utf-8; schema=chain; version=1"}

log = logging.getLogger("chains")  # figures: --log-cli-level=info

HEADWATER = ["-m", "headwater"]
# Followers whose reads are not held, so that they depend on polling and Notify.
POLLING = ["-c", "from headwater import cli, limits; limits.FOLLOW_HOLD_S = 0.0; cli.main()"]
REFUSED = program_at("http://example.com")  # no server accepts this NURL
REFUSED_POLLING = [*REFUSED[:1], f"from headwater import limits; limits.FOLLOW_HOLD_S = 0.0; {REFUSED[1]}"]


class Link:
    """A server process on a fixed port, which follows the table of the one before."""

    def __init__(
        self, directory: Path, before: Link | None = None, program: list[str] | None = None, *options: str
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.program = program or HEADWATER
        self.options = [*options] if before is None else ["--follow", f"t={before.url}", *options]
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/table/t"

    @property
    def followers(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/table/__stp/followers"

    def start(self) -> None:
        command = [sys.executable, *self.program, "serve", "--data-dir", str(self.directory)]
        command += ["--port", str(self.port), "--limit", "segment_bytes=300000", "--limit", "fold_idle_s=0.2"]
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "http://" in self.process.stdout.readline(), "the server did not restart"

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process.stdout.close()
        self.process = None
        return code

    def nurls(self) -> list[str]:
        """The NURLs that were advertised for its table."""
        answer = httpx.get(f"{self.url}/notify", params={"timeout": "0"})
        return [line.split("\t")[4] for line in answer.text.splitlines()] if answer.status_code == 200 else []


@contextlib.contextmanager
def chain(directory: Path, program: list[str] | None = None, *options: str) -> Iterator[tuple[Link, Link, Link]]:
    a = Link(directory / "a")
    b = Link(directory / "b", a, program, *options)
    c = Link(directory / "c", b, program, *options)
    links = (a, b, c)
    try:
        a.start()
        httpx.put(a.url, headers=TYPE).raise_for_status()
        b.start()
        c.start()
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


def wait_for_row(link: Link, seqno: int) -> None:
    def has_arrived() -> bool:
        answer = httpx.head(link.url)
        return answer.status_code == 200 and int(answer.headers["stp-last-seqno"]) >= seqno

    wait_until(has_arrived, f"row {seqno} arrived")


def wait_for_status(link: Link, **expected: object) -> None:
    def status() -> dict[str, object]:
        (follower,) = httpx.get(link.followers).json()["followers"]
        return {key: follower[key] for key in expected}

    wait_for(status, expected)


@pytest.mark.slow
@pytest.mark.timeout(300 + CHANGES // 50)
@pytest.mark.parametrize("program", [HEADWATER, POLLING], ids=["held", "polling"])
def test_every_change_arrives_exactly_once_whichever_server_is_killed(program: list[str], tmp_path: Path) -> None:
    chosen, kills, begun = random.Random(13), 0, time.monotonic()
    with chain(tmp_path, program) as (a, b, c):
        writer = threading.Thread(target=write, args=(a, random.Random(14)))
        writer.start()
        while kills < KILLS or writer.is_alive():
            time.sleep(chosen.random() * 0.8)
            victims = chosen.choice(([b], [c], [b, c])) if kills > 1 else [(b, c)[kills]]
            for victim in victims:
                victim.end(signal.SIGKILL)
            time.sleep(chosen.random() * 0.2)
            for victim in victims:
                victim.start()
            kills += 1
        writer.join()
        wait_for_row(c, CHANGES)
        log.info("%d changes, %d times killed, %.0f s", CHANGES, kills, time.monotonic() - begun)
        rows = [httpx.get(link.url, params={"timeout": "0"}, timeout=60).content for link in (a, b, c)]
        assert rows[0].count(b"\n") == CHANGES
        assert rows[2] == rows[0]
        assert rows[1] == rows[0]
        wait_for_status(c, state="following", last_seqno=CHANGES, lag_rows=0)
        for link, follower in ((a, b), (b, c)):
            wait_for_status(follower, notify="registered")
            assert link.nurls() == [f"{follower.url}/notify"]  # from handshakes only, repeated or not
        for link in (c, b, a):
            assert link.end(signal.SIGTERM) == 0  # followers stop with their server


def pass_on(a: Link, c: Link, count: int) -> None:
    """Append changes to A, each when a reader of C has the one before it."""
    with httpx.Client() as client, httpx.Client() as writer:
        writer.post(a.url, content="+\tk\t0\n", headers=TYPE).raise_for_status()
        wait_for_row(c, 1)
        params = {"since_id": "1", "timeout": "300", "idle": "60"}
        with client.stream("GET", c.url, params=params, timeout=60) as answer:
            lines = answer.iter_lines()
            for number in range(count):
                writer.post(a.url, content=f"+\tk\t{number}\n", headers=TYPE).raise_for_status()
                assert next(lines).endswith(f"\t{number}")


@pytest.mark.slow
@pytest.mark.parametrize("program", [HEADWATER, POLLING], ids=["held", "polling"])
def test_with_notify_each_change_arrives_before_the_next(program: list[str], tmp_path: Path) -> None:
    with chain(tmp_path, program) as (a, b, c):
        wait_for_status(b, notify="registered")
        wait_for_status(c, notify="registered")
        pass_on(a, c, 100)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "count"), [(REFUSED, 60), (REFUSED_POLLING, 5)], ids=["held", "polling"])
def test_without_notify_changes_still_arrive(program: list[str], count: int, tmp_path: Path) -> None:
    with chain(tmp_path, program) as (a, b, c):
        wait_for_status(b, notify="refused: answered 403")
        wait_for_status(c, notify="refused: answered 403")
        pass_on(a, c, count)
        assert a.nurls() == b.nurls() == []
