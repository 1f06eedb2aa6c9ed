"""Servers and backups are stopped and killed under load: no acknowledged write is lost, here or in a restore."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from headwater.client import AsyncClient
from headwater.store.embedded import index
from headwater.store.embedded.backup.failures import BackupError
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.status import RestorableSpan, spans_of
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.checking import check_directory
from tests.edges import free_port
from tests.fault.killed_server import TEXT, Life, Producer
from tests.fault.test_kills import TABLE, TableProducer, read_all
from tests.waiting import LIMIT_S, PROGRAM_LIMIT_S, wait_until_async

STREAMS = 8
TABLES = 4


class Following:
    """`headwater backup --follow` as a process."""

    def __init__(self, directory: Path, target: str) -> None:
        command = [sys.executable, "-m", "headwater", "backup", str(directory), target, "--follow", "--every", "0.1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "every 0.1 s" in self.process.stdout.readline()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PROGRAM_LIMIT_S)
        return self.process.returncode, err


async def run_timed(producer: Producer, client: httpx.AsyncClient, stop: asyncio.Event, times: list[float]) -> None:
    """Append until stopped. `times` gets the time of each acknowledgement."""
    while not stop.is_set():
        await producer._append(client)
        times.append(time.time())


def contents_of(directory: Path) -> dict[str, bytes]:
    """The bytes of each stream and table of a restored directory, which is completely folded."""
    reader = index.IndexReader(index.connect(directory / "index.db", write=False))
    try:
        contents = {}
        for state in reader.states():
            own = contents[state.path] = bytearray()
            while len(own) < state.tail:
                own += reader.read(state.id, len(own), state.tail, 1 << 20).data
        return {path: bytes(own) for path, own in contents.items()}
    finally:
        reader.close()


def check_restored(directory: Path, at_s: float, acknowledged: dict[Producer, list[float]]) -> int:
    """Check that all messages acknowledged before a time are there, in whole requests. Returns their number."""
    assert check_directory(directory, lambda _: None).problems == []
    contents, count = contents_of(directory), 0
    for producer, times in acknowledged.items():
        if isinstance(producer, TableProducer):
            rows = [line.split("\t") for line in contents[f"\x01{producer.path[9:]}"].decode().splitlines()]
            got = [(action, int(record.split()[0])) for _, _, action, key, record in rows if key == producer.name]
            numbers = [number for action, number in got if action == "+"]
            assert got == [(action, number) for number in numbers for action in "+-"]
        else:
            messages = json.loads(b"[" + contents[producer.path[1:]].removesuffix(b",") + b"]")
            numbers = [message["n"] for message in messages if message["from"] == producer.name]
        assert numbers == list(range(len(numbers))), producer.name
        least = sum(moment_s < at_s for moment_s in times)
        missing = times[len(numbers) : least]  # acknowledged before
        assert least <= len(numbers) <= len(times), (producer.name, least, len(numbers), missing, at_s)
        count += len(numbers)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 6])
def test_a_restore_to_a_time_under_load_has_every_write_acknowledged_before_it(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(11)
    port = free_port()
    directory, target = tmp_path / "data", str(tmp_path / "target")

    async def main() -> None:
        life = Life(directory, port)
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/v1/stream", limits=limits, timeout=LIMIT_S
        ) as client:
            for stream in range(STREAMS):
                assert (await client.put(f"/kill/{stream}", headers=TEXT)).status_code == 201
            for table in range(TABLES):
                assert (await client.put(f"../table/kill/{table}", headers=TABLE)).status_code == 201
            acknowledged: dict[Producer, list[float]] = {Producer(f"p{n}", n % STREAMS): [] for n in range(STREAMS * 2)}
            acknowledged |= {TableProducer(f"t{n}", n % TABLES): [] for n in range(TABLES * 2)}
            stop = asyncio.Event()
            tasks = [
                asyncio.create_task(run_timed(producer, client, stop, times))
                for producer, times in acknowledged.items()
            ]
            following = await asyncio.to_thread(Following, directory, target)
            await _when_restorable(target)
            for kill in ("backup", "server", "both") * rounds:
                await asyncio.sleep(rng.uniform(0.2, 0.6))
                if kill != "server":
                    await asyncio.to_thread(following.end, signal.SIGKILL)
                if kill != "backup":
                    life.end(signal.SIGKILL)
                    life = await asyncio.to_thread(Life, directory, port)
                if kill != "server":
                    following = await asyncio.to_thread(Following, directory, target)
            await wait_until_async(lambda: sum(map(len, acknowledged.values())) > 200)
            stop.set()
            await asyncio.gather(*tasks)
        assert life.end(signal.SIGTERM) == 0
        code, err = await asyncio.to_thread(following.end, signal.SIGTERM)
        assert (code, err) == (0, "")
        ended_s = max(times[-1] for times in acknowledged.values()) + 0.001
        spans = spans_of(DirectoryTarget(Path(target)))  # several, if the backup was down for too long
        assert spans[-1].to_ms / 1000 > ended_s
        chosen = [rng.choice(spans) for _ in range(2 * rounds)]
        moments = [min(ended_s, rng.uniform(span.from_ms, span.to_ms) / 1000) for span in chosen] + [ended_s]
        counts = []
        for number, at_s in enumerate(sorted(moments)):
            copy = tmp_path / f"copy{number}"
            restore(DirectoryTarget(Path(target)), copy, round(at_s * 1000), lambda *_: None)
            counts.append(check_restored(copy, round(at_s, 3), acknowledged))
        assert counts == sorted(counts)
        assert counts[-1] == sum(map(len, acknowledged.values())) > 200
        assert counts[0] < counts[-1]

    asyncio.run(main())


async def _when_restorable(target: str) -> None:
    """Wait until some time can be restored."""

    def spans() -> list[RestorableSpan]:
        with contextlib.suppress(BackupError):
            return spans_of(DirectoryTarget(Path(target)))
        return []

    await wait_until_async(spans)


@pytest.mark.slow
def test_a_drain_and_restart_under_load_cause_retries_only(tmp_path: Path) -> None:
    """Producers of the client get no error. Other requests get retryable responses."""
    port = free_port()

    counts = [0] * 8

    def all_above(least: int) -> bool:
        return min(counts) > least

    async def produce(client: AsyncClient, number: int, stop: asyncio.Event) -> None:
        stream = client.stream(f"drain/{number}")
        await stream.create(content_type="application/json")
        async with stream.producer(f"p{number}", auto_claim=True) as producer:
            while not stop.is_set():
                await producer.append({"n": counts[number]})
                counts[number] += 1
                await asyncio.sleep(0.001)

    async def main() -> None:
        life = Life(tmp_path / "data", port)
        stop = asyncio.Event()
        plain = Producer("plain", 0)
        async with (
            AsyncClient(f"http://127.0.0.1:{port}") as client,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1/stream", timeout=LIMIT_S) as raw,
        ):
            assert (await raw.put(plain.path, headers=TEXT)).status_code == 201
            requests = asyncio.create_task(plain.run(raw, stop))
            tasks = [asyncio.create_task(produce(client, number, stop)) for number in range(8)]
            for least in (50, 100):
                await wait_until_async(functools.partial(all_above, least))
                assert await asyncio.to_thread(life.end, signal.SIGTERM) == 0
                life = await asyncio.to_thread(Life, tmp_path / "data", port)
            await wait_until_async(functools.partial(all_above, 150))
            stop.set()
            await asyncio.gather(*tasks)
            await requests
            for number, count in enumerate(counts):
                messages = await read_all(raw, f"/drain/{number}")
                assert [message["n"] for message in messages] == list(range(count))
            assert [message["n"] for message in await read_all(raw, plain.path)] == list(range(plain.acknowledged))
        assert life.end(signal.SIGTERM) == 0

    asyncio.run(main())
