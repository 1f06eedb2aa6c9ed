"""Deletions beside steady writes, in virtual time: they are folded although the journal is never idle or full."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.commands import Append, Delete
from headwater.store.embedded.index import IndexReader
from tests.fault.test_full_disk import Machine, create


class RoomyMachine(Machine):
    """Its segments are larger than what a test writes."""

    limits = Limits(segment_bytes=4 * 1024 * 1024, fold_idle_s=2.0, expiry_sweep_s=0.5)


@contextlib.asynccontextmanager
async def steady_writes(engine: Engine) -> AsyncIterator[None]:
    """Append so often that a batch is being written most of the time."""

    async def write() -> None:
        while True:
            await engine.execute(Append("busy", engine.now_ms(), b"x", "text/plain"))
            await asyncio.sleep(0.02)

    await engine.execute(create(engine, "busy"))
    writing = asyncio.ensure_future(write())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def rows(machine: Machine, table: str) -> int:
    [count] = machine.index.connect().execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


@pytest.mark.parametrize("deletion", ["delete", "expiry"])
def test_the_space_of_deleted_streams_returns_despite_steady_writes(deletion: str) -> None:
    machine = RoomyMachine()

    async def body(engine: Engine) -> None:
        for number in range(50):
            ttl_s = 30 if deletion == "expiry" else None
            await engine.execute(create(engine, f"s{number}", b"data;", ttl_s=ttl_s))
        await asyncio.sleep(5)  # idle, so the streams are folded
        assert (rows(machine, "streams"), rows(machine, "chunks")) == (50, 50)
        async with steady_writes(engine):
            if deletion == "delete":
                for number in range(50):
                    await engine.execute(Delete(f"s{number}", engine.now_ms()))
            else:
                await asyncio.sleep(40)
            assert rows(machine, "streams") == 50
            await asyncio.sleep(bounds.FOLD_DELETED_S + 5)
            assert (rows(machine, "streams"), rows(machine, "chunks")) == (1, 1)  # of the steady writes
            assert rows(machine, "garbage") == 0

    machine.run(body)


def test_steady_writes_without_deletions_do_not_seal_segments() -> None:
    """A fold rewrites small chunks, so a segment is folded early only if that frees space."""
    machine = RoomyMachine()

    async def body(engine: Engine) -> None:
        async with steady_writes(engine):
            await asyncio.sleep(3 * bounds.FOLD_DELETED_S)
            assert rows(machine, "streams") == 0

    machine.run(body)


def test_deletions_are_folded_together() -> None:
    """At most one fold in `FOLD_DELETED_S`, however often streams are deleted."""
    machine = RoomyMachine()

    async def body(engine: Engine) -> None:
        async with steady_writes(engine):
            began_ms = engine.now_ms()
            for number in range(int(2.5 * bounds.FOLD_DELETED_S)):
                await engine.execute(create(engine, f"s{number}"))
                await engine.execute(Delete(f"s{number}", engine.now_ms()))
                await asyncio.sleep(1)
            folds_max = (engine.now_ms() - began_ms) / 1000 / bounds.FOLD_DELETED_S
            assert 2 <= IndexReader(machine.index.connect()).meta().folded_segment <= folds_max

    machine.run(body)
