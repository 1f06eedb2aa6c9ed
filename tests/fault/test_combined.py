"""Many streams over one connection, under lost connections and kills of the server: each message once, and in order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from headwater.client import AsyncClient, AsyncFollow, Retry, Timeouts
from tests.combined import CombinedEvents
from tests.edges import free_port
from tests.fault.hostile import hostile, seeded
from tests.fault.killed_server import TEXT, Life, Producer
from tests.quick import quick
from tests.shells import SHELLS, client_of
from tests.waiting import LIMIT_S, wait_until_async

SEEDS = range(int(os.environ.get("SEEDS", "6")))
PATIENT = Retry(attempts=1_000, first_s=0.001, most_s=0.01)
SLOWLY_S = 5 * LIMIT_S  # for hundreds of streams on a busy machine
TIMEOUTS = Timeouts(answer_s=5, sse_idle_s=5, sse_first_s=5)


class Got:
    """What a reader got of each stream."""

    def __init__(self, paths: list[str]) -> None:
        self.messages: dict[str, list[Any]] = {path: [] for path in paths}
        self.connections = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.messages.values()))


async def follow_with_the_client(url: str, got: Got) -> None:
    """Begins with half of the streams. Another task adds the others, and drops and adds some again."""
    paths = list(got.messages)

    async def change(follow: AsyncFollow[Any]) -> None:
        rng = random.Random(5)
        for path in paths[1::2]:
            await asyncio.sleep(rng.uniform(0, 4 / len(paths)))
            await follow.add(path)
            dropped = rng.choice(list(follow.positions))
            if rng.random() < 0.1:
                position = follow.positions[dropped]
                await follow.drop(dropped)
                await follow.add(dropped, position)

    async with AsyncClient(url, retry=PATIENT) as client, client.follow(dict.fromkeys(paths[::2], "-1")) as follow:
        changing = asyncio.create_task(change(follow))
        async for batch in follow:
            assert not any((batch.deleted, batch.closed, batch.forbidden))
            got.messages[batch.stream] += batch.items
        await changing


async def follow_as_an_event_source(url: str, got: Got) -> None:
    """As a browser does: the same URL again, with the id of the last whole event. It leaves now and then, too."""
    query = "&".join(f"stream={path}" for path in got.messages)
    rng = random.Random(6)
    last = ""
    async with httpx.AsyncClient(timeout=LIMIT_S) as http:
        while True:
            headers = {"last-event-id": last} if last else {}
            received, done = CombinedEvents(), 0
            try:
                async with http.stream("GET", f"{url}/v1/stream/__ds/live?{query}", headers=headers) as response:
                    assert response.status_code in (200, 503), await response.aread()
                    if response.status_code != 200:
                        await asyncio.sleep(0.01)
                        continue
                    got.connections += 1
                    async for chunk in response.aiter_raw():
                        received.receive(chunk)
                        for _, event in received.events[done:]:
                            got.messages[event["stream"]] += event.get("messages", ())
                        if len(received.events) > done:
                            last = received.last_id
                        done = len(received.events)
                        if len(received.received) > 1_000_000 or rng.random() < 0.005:
                            break
            except httpx.TransportError:
                await asyncio.sleep(0.01)


def have(got: list[Got], counts: list[int], readers: list[asyncio.Task[None]]) -> bool:
    """Whether the readers have so many messages."""
    for reader in readers:
        if reader.done():
            reader.result()
    return all(one.count >= count for one, count in zip(got, counts, strict=True))


async def check(directory: Path, streams: int, kills: int, messages_min: int) -> None:
    rng, port = random.Random(7), free_port()
    url = f"http://127.0.0.1:{port}"
    life = Life(directory, port)
    limits = httpx.Limits(max_connections=50)
    async with httpx.AsyncClient(base_url=f"{url}/v1/stream", limits=limits, timeout=LIMIT_S) as http:
        producers = [Producer(f"p{number}", number) for number in range(streams)]
        paths = [producer.path.strip("/") for producer in producers]
        for producer in producers:
            assert (await http.put(producer.path, headers=TEXT)).status_code == 201
        stop, turns = asyncio.Event(), asyncio.Semaphore(20)

        async def produce(producer: Producer) -> None:
            while not stop.is_set():
                async with turns:
                    await producer._append(http)

        got = [Got(paths), Got(paths)]
        readers = [
            asyncio.create_task(follow_with_the_client(url, got[0])),
            asyncio.create_task(follow_as_an_event_source(url, got[1])),
        ]
        writers = [asyncio.create_task(produce(producer)) for producer in producers]
        for _ in range(kills):
            more = [one.count + rng.randint(1, 2 * streams) for one in got]
            await wait_until_async(partial(have, got, more, readers), f"both readers have more than {more}", SLOWLY_S)
            life.end(signal.SIGKILL)
            life = Life(directory, port)
        await wait_until_async(
            lambda: sum(producer.acknowledged for producer in producers) >= messages_min, "all is written", SLOWLY_S
        )
        stop.set()
        await asyncio.gather(*writers)
        acknowledged = sum(producer.acknowledged for producer in producers)
        await wait_until_async(partial(have, got, [acknowledged] * 2, readers), "both readers have all", SLOWLY_S)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for producer, path in zip(producers, paths, strict=True):
            for one in got:
                assert [message["n"] for message in one.messages[path]] == list(range(producer.acknowledged)), path
        assert got[1].connections > kills
    assert life.end(signal.SIGTERM) == 0


def test_twenty_streams_over_kills_of_the_server(tmp_path: Path) -> None:
    asyncio.run(check(tmp_path / "data", streams=20, kills=1, messages_min=100))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_hundred_streams_over_kills_of_the_server(tmp_path: Path) -> None:
    asyncio.run(check(tmp_path / "data", streams=500, kills=12, messages_min=5_000))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seed", quick(1, SEEDS))
def test_many_streams_over_a_hostile_network(seed: int, shell: str) -> None:
    limits = ("sse_chunk_bytes=700", "sse_lifetime_s=0.4")
    paths = [f"hostile/{n}" for n in range(20)]
    messages = [{"n": n, "text": "é" * (n % 7) + "\r\n\n"} for n in range(20)]
    with (
        headwater("--memory", *(part for limit in limits for part in ("--limit", limit))) as server,
        client_of("sync", f"http://{server.host}:{server.port}") as direct,
        hostile(server, seeded(seed)) as proxy,
        client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client,
    ):
        for path in paths:
            direct.stream(path).create(messages=messages[:10])

        def write() -> None:
            for n in range(10, 20):
                for path in paths:
                    direct.stream(path).append(messages[n])
            for path in paths:
                direct.stream(path).close()

        writer = threading.Thread(target=write)
        writer.start()
        got: dict[str, list[Any]] = {path: [] for path in paths}
        ends: list[str] = []
        for batch in client.follow(dict.fromkeys(paths, "-1")):
            got[batch.stream] += batch.items
            if batch.closed:
                ends.append(batch.stream)
        writer.join()
    assert sorted(ends) == sorted(paths)
    assert all(got[path] == messages for path in paths)
