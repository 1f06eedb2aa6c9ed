"""The garbage collector looks at everything it tracks in one turn of the loop, so streams must not be tracked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.producers import ProducerTuple
from headwater.store.contract import Store
from headwater.store.memory import MemoryStore
from tests.contract.stores import embedded

STREAMS = 2_000
TRACKED_MAX = STREAMS // 4  # a list of sorted keys has about a thousand, and SQLite keeps a few hundred references

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "embedded": lambda path: embedded(path, limits=Limits(fold_idle_s=3600, disk_reserve_bytes=65_536)),
}


def tracked() -> int:
    """The number of tracked objects. Each pass stops tracking tuples, from the inside to the outside."""
    for _ in range(3):
        gc.collect()
    return len(gc.get_objects())


async def create_all(engine: Engine, prefix: str) -> None:
    for number in range(STREAMS):
        path, now_ms = f"{prefix}/{number}", engine.now_ms()
        await engine.execute(Create(path=path, now_ms=now_ms, content_type="text/plain", body=b"first;", ttl_s=86_400))


async def write_all(engine: Engine, prefix: str) -> None:
    """Two appends make a run that grows. One has a producer."""
    for number in range(STREAMS):
        path, producer = f"{prefix}/{number}", ProducerTuple("p", 0, 0)
        await engine.execute(Append(path, engine.now_ms(), b"second;", "text/plain"))
        await engine.execute(Append(path, engine.now_ms(), b"third;", "text/plain", producer=producer))
        await engine.info(path)


async def delete_all(engine: Engine, prefix: str) -> None:
    for number in range(STREAMS):
        await engine.execute(Delete(f"{prefix}/{number}", engine.now_ms()))


@pytest.mark.parametrize("store", STORES)
def test_streams_in_memory_are_not_tracked(store: str, tmp_path: Path) -> None:
    async def body(engine: Engine) -> None:
        steps: list[Callable[[Engine, str], Awaitable[None]]] = [create_all, write_all, delete_all]
        for step in steps:
            before = tracked()
            await step(engine, "s")
            assert tracked() - before < TRACKED_MAX, step.__name__

    async def live() -> None:
        engine = Engine(STORES[store](tmp_path), Limits())
        await engine.start()
        await body(engine)
        await engine.stop()

    asyncio.run(live())
