"""Runs the demo: server, shop and Spark, with a display of their progress and a check of the results."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headwater import limits
from headwater.client import Client
from headwater.demo.books import (
    Books,
    Check,
    check_quarantine,
    check_state,
    fold_events,
    fold_rows,
    fold_table,
    read_books,
)
from headwater.demo.delivery import UnreliableDelivery
from headwater.demo.feeding import Feeder
from headwater.demo.jobs import PUBLISHED, TABLE, Jobs
from headwater.demo.plotting import plot
from headwater.demo.shop import STREAMS, Shop
from headwater.demo.watching import Monitor, Status
from headwater.errors import ClientError

PLOT = "demo.png"


class ServerNotStartedError(Exception):
    """The server ended before it listened. It has printed the reason on standard error."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    events: int  # in the streams
    superseded: int  # late or repeated
    keys: int  # not deleted
    checks: list[Check]
    plot: str | None  # its path; None if matplotlib is not installed

    @property
    def is_right(self) -> bool:
        return all(check.is_right for check in self.checks)


class Display(msgspec.Struct, frozen=True):
    """The callbacks of the display, which also decides when to stop."""

    open: Callable[[str], None]  # called with the URL of the server
    going: Callable[[], bool]
    show: Callable[[Status], None]
    say: Callable[[str], None]


def run(directory: Path, display: Display, *, port: int, per_second: float) -> RunResult:
    """Run until the display stops it, let Spark catch up, and check the results."""
    directory.mkdir(parents=True, exist_ok=True)
    with _serving(directory / "streams", port) as url, Client(url) as client:
        for path in STREAMS.values():
            client.stream(path).create()
        before = read_books(client)
        chance = random.Random()
        feeder = Feeder(client, Shop(chance, before.by_type_and_key()), UnreliableDelivery(chance), per_second)
        jobs = Jobs(url, directory)
        monitor = Monitor(client, feeder, jobs)
        display.open(url)
        try:
            feeder.start()
            jobs.start()
            while display.going():
                _look(monitor, display)
            feeder.stop()
            display.say("the shop is closed; Spark processes the remaining events")
            _catch_up(monitor, display)
        finally:
            feeder.halt()
            jobs.stop()
        books = read_books(client)
        drawn = plot(monitor.seen, directory / PLOT)
        return RunResult(
            events=books.events,
            superseded=books.superseded,
            keys=len(books.state()),
            checks=check(books, client, jobs),
            plot=str(directory / PLOT) if drawn else None,
        )


def _look(monitor: Monitor, display: Display) -> None:
    display.show(monitor.look())
    time.sleep(limits.DEMO_LOOK_EVERY_S)


def _catch_up(monitor: Monitor, display: Display) -> None:
    deadline_s = time.monotonic() + limits.DEMO_CATCH_UP_S
    _look(monitor, display)
    while not monitor.has_caught_up():
        if time.monotonic() > deadline_s:
            raise ClientError(f"Spark did not catch up within {limits.DEMO_CATCH_UP_S:.0f} s")
        _look(monitor, display)


def check(books: Books, client: Client, jobs: Jobs) -> list[Check]:
    expected = books.state()
    by_key = {key: value for (_, _, key), value in expected.items()}
    quarantined = [(row["stream"], msgspec.json.decode(row["message"])) for row in jobs.quarantined()]
    return [
        check_state("materialized table", fold_rows(jobs.rows()), expected),
        check_state("published stream", fold_events(client.stream(PUBLISHED).read()), by_key),
        check_state("STP table", fold_table(client.table(TABLE).rows()), by_key),
        check_quarantine("quarantine", quarantined, books.bad),
    ]


@contextlib.contextmanager
def _serving(data_dir: Path, port: int) -> Iterator[str]:
    """Run a server, and yield its URL."""
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    # In a separate session, so that Ctrl-C does not stop the server, which is needed to finish.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            match = re.search(r"http://[^/\s]+", line)
            if match is None:
                raise ServerNotStartedError("the server did not start; it has printed the reason")
            yield match[0]
        finally:
            process.terminate()
            try:
                process.wait(limits.DEMO_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ClientError(
                    f"the server did not stop within {limits.DEMO_STOP_S:.0f} s, and was killed"
                ) from None
