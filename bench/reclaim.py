"""Space of deleted streams: how large the index becomes under churn, and how fast a large deleted stream returns.

python -m bench.reclaim [--seconds 60] [--mebibytes 1024] [--out bench/results]

Both parts use the store without HTTP, which is faster. The bench ends with an error if the index becomes larger than
`FACTOR_MAX` times the live data and the constant that `docs/operations.md` states.
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
from headwater.engine.clock import SteadyClock
from headwater.limits import Limits
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created, Deleted, Event
from headwater.log.state import StreamState, evolve
from headwater.store.contract import Commit
from headwater.store.embedded.opening import open_store
from headwater.store.embedded.store import EmbeddedStore

BATCH = 500
LIVE = 16_000  # streams under churn
SMALL_BYTES = 2_000
FACTOR_MAX = 2.0
CONSTANT_BYTES = 128 * 1024 * 1024  # the write-ahead log, and what one segment added and deleted
RETURN_S = 300.0
MIB = 1 << 20


class Streams:
    """Creates, writes and deletes streams of a store."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._states: dict[int, StreamState] = {}

    def commit_of(self, event: Event) -> Commit:
        if isinstance(event, Deleted):
            return Commit((event,), (self._states.pop(event.id),), None)
        if not isinstance(event, (Created, Appended)):
            raise TypeError(f"{type(event).__name__} is not written by this bench")
        state = evolve(self._states.get(event.id), event)
        if state is None:
            raise RuntimeError("the stream does not exist")
        self._states[event.id] = state
        return Commit((event,), (state,), None)

    async def write(self, events: list[Event]) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store.commit([self.commit_of(event) for event in events], partial(_settle, durable))
        await durable


def _settle(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if error:
        durable.set_exception(error)
    else:
        durable.set_result(None)


def created(number: int, data: bytes) -> Created:
    return Created(
        id=number,
        path=f"reclaim/{number:09d}",
        content_type="application/octet-stream",
        kind=ContentKind.BINARY,
        at_ms=1,
        data=data,
    )


def index_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.glob("index.db*"))


async def churn(streams: Streams, directory: Path, seconds: float) -> dict[str, float]:
    """Replace the oldest of the live streams without a pause."""
    rng, began_s, number, largest_bytes = random.Random(1), time.perf_counter(), 0, 0
    while time.perf_counter() - began_s < seconds or number <= LIVE:
        events: list[Event] = [created(key, rng.randbytes(SMALL_BYTES)) for key in range(number, number + BATCH)]
        if number >= LIVE:
            events += [Deleted(key, 2) for key in range(number - LIVE, number - LIVE + BATCH)]
        await streams.write(events)
        number += BATCH
        largest_bytes = max(largest_bytes, index_bytes(directory))
    live_bytes = LIVE * SMALL_BYTES
    return {
        "live_mb": live_bytes / 1e6,
        "churned_per_s": number / (time.perf_counter() - began_s),
        "largest_mb": largest_bytes / 1e6,
        "allowed_mb": (FACTOR_MAX * live_bytes + CONSTANT_BYTES) / 1e6,
    }


async def return_large(store: EmbeddedStore, streams: Streams, directory: Path, mebibytes: int) -> dict[str, float]:
    """Delete one large stream, and measure how long its space takes to return to the file system."""
    key, data = 10**9, random.Random(2).randbytes(MIB)
    await streams.write([created(key, b"")])
    for number in range(mebibytes):
        await streams.write([Appended(key, number * MIB, 3, data)])
    await store.fold()
    index = directory / "index.db"
    full_bytes, began_s = index.stat().st_size, time.perf_counter()
    await streams.write([Deleted(key, 4)])
    await store.fold()
    while index.stat().st_size > full_bytes - 0.95 * mebibytes * MIB:
        if time.perf_counter() - began_s > RETURN_S:
            raise TimeoutError(f"the index still has {index.stat().st_size:,} of {full_bytes:,} bytes")
        await asyncio.sleep(0.05)
    took_s = time.perf_counter() - began_s
    return {"mebibytes": mebibytes, "return_s": took_s, "return_mib_per_s": mebibytes / took_s}


async def measure(directory: Path, seconds: float, mebibytes: int) -> dict[str, float]:
    store = open_store(directory, Limits(fold_idle_s=3600))
    failures: list[BaseException] = []
    await store.start(failures.append, SteadyClock(store.latest).moment)
    streams = Streams(store)
    figures = await churn(streams, directory, seconds)
    figures |= await return_large(store, streams, directory, mebibytes)
    await store.close()
    if failures:
        raise failures[0]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--dir", type=Path, help="where the data directory is created")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        figures = uvloop.run(measure(Path(directory) / "data", options.seconds, options.mebibytes))
    print(json.dumps(figures, indent=1))
    save("reclaim", figures, options.out)
    if figures["largest_mb"] > figures["allowed_mb"]:
        raise SystemExit(f"the index took {figures['largest_mb']:.0f} MB, more than {figures['allowed_mb']:.0f} MB")


if __name__ == "__main__":
    main()
