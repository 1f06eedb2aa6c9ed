"""Trims beside steady writes, in virtual time: the disk gets back what is trimmed, at record boundaries."""

from __future__ import annotations

import asyncio

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.log.commands import Append
from headwater.log.retention import Retention
from tests.fault.test_deletions import RoomyMachine, rows, steady_writes
from tests.fault.test_full_disk import create


def test_the_space_of_trimmed_records_returns_despite_steady_writes() -> None:
    machine = RoomyMachine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", retention=Retention(bytes=50_000)))
        for _ in range(400):
            await engine.execute(Append("a", engine.now_ms(), b"x" * 1_000, "text/plain"))
        async with steady_writes(engine):
            await asyncio.sleep(3 * bounds.FOLD_DELETED_S)
            info = await engine.info("a")
            assert (info.first, info.tail) == (350_000, 400_000)
            [size] = (
                machine.index.connect()
                .execute("SELECT sum(size) FROM chunks WHERE stream_id = ?", (info.id,))
                .fetchone()
            )
            assert size <= 2 * 50_000
            assert rows(machine, "garbage") == 0
            assert len((await engine.read(Read("a", bytes_max=100_000))).data) == 50_000

    machine.run(body)
