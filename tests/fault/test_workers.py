"""A pool of workers that are killed, stopped, paused and added at random, while events are appended. The server is
killed and started again as well.

Every event is processed at least once, none after one that follows it was acked, and the work of a worker that was
killed is taken over. The run takes some seconds; with the variable `WORKERS_S` another time:

    WORKERS_S=600 pytest -s tests/fault/test_workers.py
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headwater.client import Client, ProducerTuple
from tests.edges import free_port
from tests.fault.killed_server import Life
from tests.fault.pool_worker import Line
from tests.waiting import LIMIT_S, wait_until

RUN_S = float(os.environ.get("WORKERS_S", "10"))
SEED = int(os.environ.get("SEED", "1"))
WORKERS, SUBSCRIPTIONS, STREAMS = 6, 20, 2  # STREAMS of each subscription
LEASE_S = 2.0
WAKES = "wake/pool"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(RUN_S + 300)]


class DurableServer:
    """A server that can be killed and started again with its data and its port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._life = Life(directory, self._port)
        self.url = f"http://127.0.0.1:{self._port}"

    def kill(self) -> None:
        self._life.end(signal.SIGKILL)
        self._life = Life(self._directory, self._port)

    def stop(self) -> None:
        self._life.end(signal.SIGTERM)


class Pool:
    """Worker processes, their server, and what happened to them."""

    def __init__(self, server: DurableServer, file: Path, chance: random.Random) -> None:
        self.kills: list[tuple[float, str]] = []  # when, and who
        self.server_kills: list[float] = []
        self.counts: Counter[str] = Counter()
        self._server = server
        self._file = file
        self._chance = chance
        self._numbers = itertools.count(1)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def add(self) -> None:
        name = f"w{next(self._numbers)}"
        command = [sys.executable, "-m", "tests.fault.pool_worker", self._server.url, WAKES, name, str(self._file)]
        self._running[name] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.counts["started"] += 1

    def hurt_one(self) -> None:
        """Kill, stop or pause a worker, or kill the server. Usually another worker is added, sometimes later."""
        harm = self._chance.choices(["killed", "stopped", "paused", "server killed"], [6, 2, 2, 1])[0]
        self.counts[harm] += 1
        if harm == "server killed":
            self.server_kills.append(time.monotonic())
            self._server.kill()
            return
        name = self._victim()
        process = self._running[name]
        if harm == "paused":
            process.send_signal(signal.SIGSTOP)
            pause_s = self._chance.uniform(0.5, 2) * LEASE_S
            threading.Timer(pause_s, process.send_signal, (signal.SIGCONT,)).start()
            return
        del self._running[name]
        process.send_signal(signal.SIGKILL if harm == "killed" else signal.SIGTERM)
        if harm == "killed":
            self.kills.append((time.monotonic(), name))
        threading.Thread(target=process.wait).start()
        while len(self._running) < WORKERS - self._chance.choice([0, 0, 1]):
            self.add()

    def _victim(self) -> str:
        """A worker that has a claim, as far as its last line says, or else any."""
        last = {line.worker: line.what for line in read_lines(self._file)[-200:]}
        names = [name for name in self._running if last.get(name) in ("claim", "process")]
        return self._chance.choice(names or list(self._running))

    def is_ready(self) -> bool:
        """Whether all workers have started: on a busy machine that takes longer than the time between two kills."""
        return self._file.exists() and self._file.read_bytes().count(b'"ready"') >= self.counts["started"]

    def end(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            process.wait(LIMIT_S)


class Writer:
    """Appends numbered events to random streams until it is stopped."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self.written: dict[str, int] = defaultdict(int)  # by stream, the number of its last event
        self._client = client
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        sequences: Counter[str] = Counter()
        while not self._stopping.wait(0.05):  # workers are idle most of the time, so a claim does not wait for one
            stream = f"s{self._chance.randrange(SUBSCRIPTIONS)}/{self._chance.randrange(STREAMS)}"
            first = self.written[stream] + 1
            last = first + self._chance.randrange(5)
            producer = ProducerTuple("writer", 0, sequences[stream])
            events = [{"n": number} for number in range(first, last + 1)]
            self._client.stream(stream, content_type="application/json").append_many(events, producer=producer)
            sequences[stream] += 1
            self.written[stream] = last

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DurableServer]:
    server = DurableServer(tmp_path / "data")
    yield server
    server.stop()


@pytest.fixture
def client(server: DurableServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def prepare(client: Client) -> None:
    client.stream(WAKES).create()
    for number in range(SUBSCRIPTIONS):
        for stream in range(STREAMS):
            client.stream(f"s{number}/{stream}").create()
        client.subscription(f"s{number}").create(pattern=f"s{number}/*", wake_stream=WAKES, lease_s=LEASE_S)


def is_processed(client: Client) -> bool:
    """Whether every stream was acked up to its tail."""
    for number in range(SUBSCRIPTIONS):
        for link in client.subscription(f"s{number}").get().streams:
            if link.acked_offset != client.stream(link.path).head().tail_offset:
                return False
    return True


def test_a_pool_of_workers_that_are_killed_at_random(server: DurableServer, client: Client, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    prepare(client)
    file = tmp_path / "lines"
    pool, writer = Pool(server, file, chance), Writer(client, random.Random(SEED))
    with contextlib.ExitStack() as stack:
        stack.callback(pool.end)
        stack.callback(writer.stop)
        for _ in range(WORKERS):
            pool.add()
        deadline_s = time.monotonic() + RUN_S
        while time.monotonic() < deadline_s:
            wait_until(lambda: pool.is_ready(), "the workers have started")
            time.sleep(chance.uniform(0.3, 1.0))
            pool.hurt_one()
        writer.stop()
        wait_until(lambda: is_processed(client), "every event is acked")
    check(read_lines(file), pool, writer)


def read_lines(file: Path) -> list[Line]:
    """The lines of all workers in the order of time."""
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in file.read_bytes().splitlines()]
    return sorted(lines, key=lambda line: line.time_s)


def check(lines: list[Line], pool: Pool, writer: Writer) -> None:
    processed: dict[str, Counter[int]] = defaultdict(Counter)
    offsets: dict[tuple[str, str], int] = {}  # the number of the last event before an offset
    acked: dict[str, int] = defaultdict(int)  # by stream, the number of the last event that was acked
    generations: dict[str, int] = defaultdict(int)
    late_fenced = 0
    for line in lines:
        for stream, offset in ((line.stream, line.offset), *line.cursors.items()) if line.what != "process" else ():
            acked[stream] = max(acked[stream], offsets.get((stream, offset), 0))
        if line.what != "process":
            continue
        offsets[line.stream, line.offset] = line.numbers[-1]
        if line.generation < generations[line.subscription]:
            late_fenced += 1  # a worker that was paused; the generation shows that its lease was over
            continue
        generations[line.subscription] = line.generation
        assert line.numbers[0] > acked[line.stream], f"{line} was processed after event {acked[line.stream]} was acked"
        assert line.numbers == list(range(line.numbers[0], line.numbers[-1] + 1))
        assert line.numbers[0] <= max(processed[line.stream], default=0) + 1, f"{line} leaves events out"
        processed[line.stream].update(line.numbers)
    for stream, last in writer.written.items():
        assert set(processed[stream]) == set(range(1, last + 1)), f"events of {stream} are missing"
    sys.stdout.write(figures(lines, pool, processed, late_fenced))


def figures(lines: list[Line], pool: Pool, processed: dict[str, Counter[int]], late_fenced: int) -> str:
    events = sum(len(counts) for counts in processed.values())
    repeated = sum(count - 1 for counts in processed.values() for count in counts.values())
    claims = sum(line.what == "claim" for line in lines)
    waits = {"": hand_overs(lines, pool), " while the server was killed, too": hand_overs(lines, pool, by_server=True)}
    return (
        f"\n{RUN_S:g} s, seed {SEED}: {WORKERS} workers over {SUBSCRIPTIONS} subscriptions, lease {LEASE_S:g} s\n"
        f"workers: {dict(pool.counts)}\n"
        f"{events:,} events, each processed at least once; {repeated:,} again; {claims:,} claims\n"
        f"{late_fenced} batches of paused workers after a later generation, none of them acked\n"
        + "".join(
            f"{len(times_s)} claims of killed workers taken over{when}: median {times_s[len(times_s) // 2]:.2f} s, "
            f"longest {times_s[-1]:.2f} s\n"
            for when, times_s in waits.items()
            if times_s
        )
    )


def hand_overs(lines: list[Line], pool: Pool, *, by_server: bool = False) -> list[float]:
    """For each worker that was killed while it had a claim: the time until the subscription was claimed again.

    Either those during which the server was killed as well, or the others.
    """
    times_s = []
    for killed_s, name in pool.kills:
        own = [line for line in lines if line.worker == name and line.time_s <= killed_s]
        if not own or own[-1].what in ("ready", "end"):
            continue
        claimed = (
            line.time_s
            for line in lines
            if line.what == "claim" and line.subscription == own[-1].subscription and line.time_s > killed_s
        )
        if (claimed_s := next(claimed, None)) is None:
            continue
        begin_s = killed_s - LEASE_S
        if any(begin_s <= server_s <= claimed_s for server_s in pool.server_kills) is by_server:
            times_s.append(claimed_s - killed_s)
    return sorted(times_s)
