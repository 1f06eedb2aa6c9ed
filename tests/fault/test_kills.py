"""A real server is killed at random times under load: every acknowledged message is stored exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.edges import free_port
from tests.fault.killed_server import TEXT, Life, Producer
from tests.waiting import LIMIT_S, PROGRAM_LIMIT_S, wait_until, wait_until_async

KILLS = 20
STREAMS = 24
TABLES = 6
TABLE = {"content-type": "text/sequence"}


class TableProducer(Producer):
    """The same for a table: two rows with each request."""

    headers = TABLE

    def __init__(self, name: str, stream: int) -> None:
        super().__init__(name, stream)
        self.path = f"../table/kill/{stream}"

    def body(self) -> str:
        return f"+\t{self.name}\t{self.acknowledged}\n-\t{self.name}\t{self.acknowledged} {'x' * 200}\n"


async def check_table(client: httpx.AsyncClient, path: str, producers: list[Producer]) -> None:
    """Check that SeqNos have no gaps, and that both rows of every request are there in order."""
    read = await client.get(path, params={"timeout": "0"})
    rows = [line.split("\t") for line in read.text.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    for producer in producers:
        actions = [(action, record.split()[0]) for _, _, action, key, record in rows if key == producer.name]
        assert actions == [(action, str(n)) for n in range(producer.acknowledged) for action in "+-"], producer.name


async def read_all(client: httpx.AsyncClient, path: str) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    offset = "-1"
    while True:
        read = await client.get(path, params={"offset": offset})
        assert read.status_code == 200, read.text
        messages += read.json()
        offset = read.headers["stream-next-offset"]
        if "stream-up-to-date" in read.headers:
            return messages


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    port = free_port()

    async def main() -> int:
        life = Life(tmp_path / "data", port)
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/v1/stream", limits=limits, timeout=LIMIT_S
        ) as client:
            for stream in range(STREAMS):
                assert (await client.put(f"/kill/{stream}", headers=TEXT)).status_code == 201
            for table in range(TABLES):
                assert (await client.put(f"../table/kill/{table}", headers=TABLE)).status_code == 201
            producers = [Producer(f"p{number}", number % STREAMS) for number in range(STREAMS * 2)]
            producers += [TableProducer(f"t{number}", number % TABLES) for number in range(TABLES * 2)]
            stop = asyncio.Event()
            tasks = [asyncio.create_task(producer.run(client, stop)) for producer in producers]
            for _ in range(KILLS):
                await asyncio.sleep(rng.uniform(0.05, 0.8))
                life.end(signal.SIGKILL)
                life = Life(tmp_path / "data", port)
            await wait_until_async(lambda: sum(producer.acknowledged for producer in producers) > 1000)
            stop.set()
            await asyncio.gather(*tasks)
            for stream in range(STREAMS):
                messages = await read_all(client, f"/kill/{stream}")
                for producer in producers:
                    if producer.path == f"/kill/{stream}":
                        numbers = [message["n"] for message in messages if message["from"] == producer.name]
                        assert numbers == list(range(producer.acknowledged)), producer.name
            for table in range(TABLES):
                path = f"../table/kill/{table}"
                await check_table(client, path, [producer for producer in producers if producer.path == path])
        assert life.end(signal.SIGTERM) == 0
        return sum(producer.acknowledged for producer in producers)

    acknowledged = asyncio.run(main())
    assert acknowledged > 1000


def test_a_second_server_on_the_directory_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path / "data", free_port())
    try:
        second = subprocess.run(
            [sys.executable, "-m", "headwater", "serve", "--data-dir", str(tmp_path / "data"), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
        assert second.returncode == 1
        assert f"in use by process {life.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        with contextlib.suppress(ProcessLookupError):
            assert life.end(signal.SIGTERM) == 0


def fold_workers(server_pid: int) -> list[int]:
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return [int(pid) for pid in children]


def has_ended(server_pid: int, pid: int) -> bool:
    return pid not in fold_workers(server_pid)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGABRT])
def test_the_server_survives_every_death_of_its_fold_worker(tmp_path: Path, kind: signal.Signals) -> None:
    """It dies while it is idle and while it folds. What was written meanwhile is folded by the next one."""
    port = free_port()
    life = Life(tmp_path / "data", port)
    root = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=f"{root}/v1/stream", timeout=LIMIT_S) as http:
            assert http.put("/a", headers={"content-type": "text/plain"}).status_code == 201
            for number in range(4):
                [pid] = wait_until(lambda: fold_workers(life.process.pid), "a fold worker runs")
                os.kill(pid, kind)
                wait_until(partial(has_ended, life.process.pid, pid), "it has ended")
                body = f"{number};".encode() * 20_000
                assert http.post("/a", headers={"content-type": "text/plain"}, content=body).status_code == 204
            wait_until(lambda: metric(root, "headwater_journal_unfolded_bytes") == 0, "the journal is folded")
            assert metric(root, "headwater_fold_worker_deaths_total") >= 4
            assert http.get(f"{root}/readyz").status_code == 200
    finally:
        assert life.end(signal.SIGTERM) == 0


def metric(root: str, name: str) -> float:
    lines = httpx.get(f"{root}/metrics", timeout=LIMIT_S).text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(value)
