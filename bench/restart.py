"""Restart with very many streams: the time until the server is ready, its memory, and the latency of first reads.

python -m bench.restart [--streams 1000000] [--bytes 10000] [--out bench/results]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path

import uvloop

from bench.history import RESULTS, save
from bench.load import call
from bench.servers import headwater
from headwater.cli.load import percentile
from headwater.engine.clock import SteadyClock
from headwater.limits import Limits
from headwater.log.content import ContentKind
from headwater.log.events import Created
from headwater.log.state import evolve
from headwater.store.contract import Commit
from headwater.store.embedded.opening import open_store

BATCH = 500


def _settle(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if error:
        durable.set_exception(error)
    else:
        durable.set_result(None)


async def build(directory: Path, streams: int, size: int) -> None:
    """Create the streams directly in the store, which is faster than over HTTP."""
    limits = Limits(fold_idle_s=0.5)
    store = open_store(directory, limits)
    failures: list[BaseException] = []
    await store.start(failures.append, SteadyClock(store.latest).moment)
    data = random.Random(1).randbytes(size)
    for first in range(1, streams + 1, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, streams + 1)):
            event = Created(
                id=number,
                path=f"restart/{number:08d}",
                content_type="application/octet-stream",
                kind=ContentKind.BINARY,
                at_ms=1,
                data=data,
            )
            state = evolve(None, event)
            if state is not None:
                batch.append(Commit((event,), (state,), None))
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.commit(batch, partial(_settle, durable))
        await durable
    while any((directory / "journal").glob("0*.journal")):  # noqa: ASYNC110 - the fold is another process
        await asyncio.sleep(0.2)
    await store.close()
    if failures:
        raise failures[0]


def measure(directory: Path, streams: int) -> dict[str, float]:
    started_s = time.perf_counter()
    with headwater("--data-dir", str(directory)) as server:
        ready_s = time.perf_counter() - started_s
        memory = server.memory_bytes()
        rng = random.Random(2)
        delays = []
        for _ in range(2_000):
            before_s = time.perf_counter()
            answer = call(server, "GET", f"restart/{rng.randint(1, streams):08d}")
            delays.append(time.perf_counter() - before_s)
            if b"200 OK" not in answer[:20]:
                raise RuntimeError(answer[:200])
    return {
        "start_s": round(ready_s, 3),
        "memory_mb": round(memory / 1e6, 1),
        "first_read_p50_ms": round(percentile(delays, 0.5) * 1000, 3),
        "first_read_p99_ms": round(percentile(delays, 0.99) * 1000, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=10_000, help="of each stream")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as parent:
        directory = Path(parent) / "data"
        started_s = time.perf_counter()
        uvloop.run(build(directory, arguments.streams, arguments.bytes))
        size = (directory / "index.db").stat().st_size
        result = {
            "streams": arguments.streams,
            "bytes_each": arguments.bytes,
            "build_s": round(time.perf_counter() - started_s, 1),
            "index_bytes": size,
            "index_bytes_per_stream_beyond_data": round(size / arguments.streams - arguments.bytes),
            **measure(directory, arguments.streams),
        }
    print(json.dumps(result, indent=1))
    save("restart", result, arguments.out)


if __name__ == "__main__":
    main()
