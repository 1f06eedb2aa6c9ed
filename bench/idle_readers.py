"""Many idle live readers of one AsyncClient: `python -m bench.idle_readers [--readers 1600] [--seconds 150]`.

Feeds end after `sse_lifetime_s`, and every reader reconnects. Readers that began together would come back together. The
bench follows many streams with one client, and reports the processor time of the client and of the server, and the
share of readers that were connected: on average, and the least in any sample.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.servers import Server, headwater
from headwater.client import AsyncClient

SAMPLE_S = 0.5
STREAMS = 100
STARTED_PART = 0.95  # of the readers that are connected when the measurement begins
STARTING_SAMPLES_MAX = 120
SCRAPES_MAX = 20


def cpu_s(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def connected(metrics: str) -> int:
    lines: Iterator[str] = (line for line in metrics.splitlines() if "live_readers" in line and 'sse"' in line)
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")))


async def follow(client: AsyncClient, path: str) -> None:
    async for _ in client.stream(path).read(offset="now", live=True):
        pass


async def measure(server: Server, readers: int, seconds: float) -> dict[str, float]:
    origin = f"http://{server.host}:{server.port}"
    # A connection for each scrape: the server closes one that was idle while the client was busy.
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with AsyncClient(origin) as client, httpx.AsyncClient(timeout=60, limits=fresh) as scraper:

        async def count() -> int:
            for _ in range(SCRAPES_MAX):  # the server ends a connection that a busy client does not use in time
                with contextlib.suppress(httpx.HTTPError):
                    return connected((await scraper.get(f"{origin}/metrics")).text)
            raise RuntimeError("the metrics cannot be read")

        for number in range(STREAMS):
            await client.stream(f"idle/{number}").create()
        tasks = [asyncio.create_task(follow(client, f"idle/{number % STREAMS}")) for number in range(readers)]
        for _ in range(STARTING_SAMPLES_MAX):
            if await count() >= readers * STARTED_PART:
                break
            await asyncio.sleep(SAMPLE_S)
        began_s, client_s, server_s = time.monotonic(), time.process_time(), cpu_s(server.pid)
        samples: list[int] = []
        while time.monotonic() - began_s < seconds:
            await asyncio.sleep(SAMPLE_S)
            samples.append(await count())
        minutes = (time.monotonic() - began_s) / 60
        figures = {
            "readers": readers,
            "minutes": round(minutes, 2),
            "client processor s per minute": round((time.process_time() - client_s) / minutes, 2),
            "server processor s per minute": round((cpu_s(server.pid) - server_s) / minutes, 2),
            "connected on average": round(sum(samples) / len(samples) / readers, 4),
            "connected at least": round(min(samples) / readers, 4),
        }
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1600)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--lifetime", type=float, default=60, help="the limit sse_lifetime_s of the server")
    arguments = parser.parse_args()
    with headwater("--memory", "--limit", f"sse_lifetime_s={arguments.lifetime}") as server:
        print(json.dumps(asyncio.run(measure(server, arguments.readers, arguments.seconds)), indent=2))


if __name__ == "__main__":
    main()
