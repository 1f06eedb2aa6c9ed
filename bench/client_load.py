"""Run one client in a separate process, so that its memory can be measured: WHO WHAT URL."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import durable_streams

from bench.machine import peak_memory_bytes
from headwater.client import AsyncClient, Client

MESSAGES = 2_000_000
GATHERED = 1_000  # appends awaited together, which the official client turns into batches


def message(number: int) -> dict[str, object]:
    return {"id": number, "name": f"customer {number}", "pad": "x" * 60}


def ours_produce(url: str) -> None:
    with Client() as client, client.stream(url).producer() as producer:
        for number in range(MESSAGES):
            producer.append(message(number))


async def ours_async_produce(url: str) -> None:
    async with AsyncClient() as client, client.stream(url).producer() as producer:
        for number in range(MESSAGES):
            await producer.append(message(number))


async def official_produce(url: str) -> None:
    producer_type = getattr(durable_streams, "IdempotentProducer", None)
    if producer_type is not None:  # not in the release on the registry
        producer = producer_type(url, "bench", content_type="application/json")
        for number in range(MESSAGES):
            producer.append(json.dumps(message(number)))
            if number % GATHERED == 0:
                await asyncio.sleep(0)
        await producer.flush()
        await producer.close()
        return
    async with durable_streams.AsyncDurableStream(url, content_type="application/json") as handle:
        for first in range(0, MESSAGES, GATHERED):
            await asyncio.gather(*(handle.append(message(number)) for number in range(first, first + GATHERED)))


def ours_read(url: str) -> int:
    with Client() as client:
        return sum(1 for _ in client.stream(url).read())


async def ours_async_read(url: str) -> int:
    count = 0
    async with AsyncClient() as client:
        async for _ in client.stream(url).read():
            count += 1
    return count


def official_read(url: str) -> int:
    with durable_streams.stream(url, offset="-1", live=False) as response:
        return sum(1 for _ in response.iter_json())


async def official_async_read(url: str) -> int:
    count = 0
    async with durable_streams.astream(url, offset="-1", live=False) as response:
        async for _ in response.iter_json():
            count += 1
    return count


def main() -> None:
    who, what, url = sys.argv[1:]
    work = globals()[f"{who}_{what}"]
    started_s = time.perf_counter()
    done = asyncio.run(work(url)) if asyncio.iscoroutinefunction(work) else work(url)
    seconds = time.perf_counter() - started_s
    if done is not None and done != MESSAGES:
        raise RuntimeError(f"read {done} of {MESSAGES} messages")
    peak_bytes = peak_memory_bytes()
    print(json.dumps({"per_second": MESSAGES / seconds, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
