"""A server and a driver that are killed at certain requests and started again, for tests of the final result."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.servers import ROOT, Server, headwater

from tests.edges import free_port
from tests.fault.hostile import KINDS, Fate

_NOISE = [kind for kind in KINDS if kind not in ("duplicate", "trickle", "delay")]


class Scene:
    """A server and a driver that are started again after a kill, and the requests at which they are killed."""

    def __init__(
        self, directory: Path, program: list[str], seed: int, victims: list[str], aims: tuple[str, ...]
    ) -> None:
        self._directory = directory
        self._program = program
        self._port = free_port()
        self._seed = seed
        self._chance = random.Random(seed)
        self._open = contextlib.ExitStack()
        self._driver: subprocess.Popen[bytes] | None = None
        self._victims = list(victims)
        self._aims = aims
        self._countdown = self._chance.randrange(1, 9) if len(victims) > 1 else 2
        self.deaths: Counter[str] = Counter()
        self.server = self._start_server()

    def _start_server(self) -> Server:
        return self._open.enter_context(
            headwater("--data-dir", str(self._directory / "data"), "--port", str(self._port))
        )

    def decide(self, what: str, times: int) -> Fate:
        if what.startswith(self._aims) and self._victims:
            self._countdown -= 1
            if self._countdown <= 0:
                self._countdown = self._chance.randrange(2, 12)
                victim = self._victims.pop(0)
                return Fate("lose", then=self.kill_driver if victim == "driver" else self._kill_server)
        chance = random.Random(f"{self._seed} {what} {times}")
        if chance.random() < 0.05:
            kind = chance.choice(_NOISE)
            return Fate(kind, chance.randrange(2000) if kind in ("reset", "cut") else 0)
        return Fate()

    def kill_driver(self) -> None:
        self.deaths["driver"] += 1
        self._end_driver()

    def _end_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)

    def _kill_server(self) -> None:
        self.deaths["server"] += 1
        os.kill(self.server.pid, signal.SIGKILL)
        self.server = self._start_server()

    def run(self, url: str, meanwhile: Callable[[], None]) -> None:
        """Start drivers until one succeeds. After the first, call `meanwhile`."""
        for attempt in range(12):
            if attempt == 1:
                meanwhile()
            command = [sys.executable, "-m", *self._program, url]
            log = self._open.enter_context((self._directory / "driver.log").open("ab"))
            self._driver = subprocess.Popen(
                command,
                cwd=ROOT,
                start_new_session=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
            if self._driver.wait(120) == 0:
                assert attempt > 0, "nobody was killed"
                return
        raise AssertionError((self._directory / "driver.log").read_text()[-3000:])

    def close(self) -> None:
        self._end_driver()
        self._open.close()


@contextlib.contextmanager
def scene(directory: Path, program: list[str], seed: int, victims: list[str], aims: tuple[str, ...]) -> Iterator[Scene]:
    running = Scene(directory, program, seed, victims, aims)
    try:
        yield running
    finally:
        running.close()
