"""A full disk in virtual time: deletions pass, their space returns while clients retry, and the state does not flap."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.writer import Writer
from headwater.errors import StorageFullError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.store.embedded import newest
from headwater.store.embedded.disk import Reserve
from headwater.store.embedded.journal_writer import SEAL_BYTES
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.store import EmbeddedStore, Parts
from tests.fault import sim
from tests.fault.copies import Directory
from tests.fault.lives import LoopClock
from tests.fault.sim import SimFolder, SimIndex, SimLoop, SimReaders, SimRunner, SimSyncer, connect
from tests.fault.sim_disk import SimDisk
from tests.journals import NEW

SEGMENT = 4096
LIMITS = Limits(segment_bytes=SEGMENT, fold_idle_s=2.0, expiry_sweep_s=0.5, unfolded_segments_max=3)


class Machine:
    """A simulated machine whose disk can be filled."""

    reserve_bytes = 4 * SEGMENT
    limits = LIMITS

    def __init__(self, seed: int = 0) -> None:
        self.disk = SimDisk(random.Random(seed))
        newest.create(self.disk, NEW)
        self.index = SimIndex()

    def store(self) -> EmbeddedStore:
        disk = self.disk
        parts = Parts(
            disk=disk,
            connect=lambda: connect(disk, self.index),
            syncer=SimSyncer(disk),
            helper=SimRunner(disk),
            writer=SimRunner(disk),
            folder=SimFolder(disk, self.index),
            readers=SimReaders(disk),
            salt=lambda: disk.random.getrandbits(32),
            reserve=Reserve(disk, self.reserve_bytes),
        )
        return EmbeddedStore(parts, recover(disk, connect(disk, self.index)), self.limits)

    def run(self, body: Callable[[Engine], Awaitable[None]]) -> None:
        async def live() -> None:
            engine = Engine(self.store(), self.limits, clock=LoopClock())
            await engine.start()
            await body(engine)
            await engine.stop()

        loop = SimLoop()
        try:
            loop.run_until_complete(live())
        finally:
            loop.close()
            self.index.restart()
        assert loop.failures == []
        Directory(self.disk, self.index).check()


def create(engine: Engine, path: str, body: bytes = b"", **more: object) -> Create:
    return Create(path=path, now_ms=engine.now_ms(), content_type="text/plain", body=body, **more)  # type: ignore[arg-type]


async def put(engine: Engine, path: str, size: int) -> str:
    """Append, or try to. Returns what happened."""
    try:
        await engine.execute(Append(path, engine.now_ms(), b"x" * size, "text/plain"))
    except StorageFullError:
        return "refused"
    return "stored"


async def fill(machine: Machine, engine: Engine) -> None:
    """Fill the disk, and append until the server notices it."""
    machine.disk.full = True
    while await put(engine, "busy", 1000) == "stored":
        await asyncio.sleep(0.01)


def test_deletions_pass_and_are_folded_while_clients_retry() -> None:
    """All kinds of commands that free space, many in a row, beside appends that are refused and repeated."""
    machine = Machine()

    async def retry(engine: Engine) -> None:
        while True:
            await put(engine, "busy", 1000)
            await asyncio.sleep(0.05)

    async def body(engine: Engine) -> None:
        names = [f"s{number}" for number in range(300)]
        for name in ["busy", "open", "source", *names]:
            await engine.execute(create(engine, name, b"data;"))
        await engine.execute(create(engine, "fork", fork=ForkRequest("source")))
        await engine.execute(create(engine, "short", ttl_s=3))
        await fill(machine, engine)
        retrying = asyncio.ensure_future(retry(engine))
        await engine.execute(Append("open", engine.now_ms(), b"", "text/plain", close=True))
        for path in ("source", "fork", *names):
            await engine.execute(Delete(path, engine.now_ms()))
        await asyncio.sleep(10)
        store = engine._store
        assert isinstance(store, EmbeddedStore)
        assert store.streams == 2  # "short" has expired
        folded = machine.index.connect()
        assert folded.execute("SELECT path FROM streams WHERE path LIKE 's%'").fetchall() == []
        assert folded.execute("SELECT stream_id FROM garbage").fetchall() == []
        assert store.full is None  # the fold has freed the segments of the journal
        retrying.cancel()
        assert await put(engine, "busy", 1000) == "stored"
        assert len(machine.disk.read("reserve")) == machine.reserve_bytes
        machine.disk.full = False

    machine.run(body)


def spying(real: Callable[..., Awaitable[None]], batches: list[int]) -> Callable[..., Awaitable[None]]:
    async def roll_back(self: Writer, entries: list[object], *more: object) -> None:
        batches.append(len(entries))
        await real(self, entries, *more)

    return roll_back


def test_deletions_in_a_batch_that_is_refused_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "PAGE", 0)  # the journal is the first to find no space
    batches: list[int] = []
    monkeypatch.setattr(Writer, "_roll_back", spying(Writer._roll_back, batches))
    for seed in range(10):
        delete_in_a_refused_batch(Machine(seed))
    assert len(batches) >= 5


def delete_in_a_refused_batch(machine: Machine) -> None:
    """Deletions share the batch with the first append that is refused, wait behind it, or arrive while it is undone."""

    async def later(work: Awaitable[str]) -> str:
        for _ in range(machine.disk.random.randint(0, 4)):  # turns of the loop
            await asyncio.sleep(0)
        return await work

    async def delete(engine: Engine, number: int) -> str:
        await engine.execute(Delete(f"s{number}", engine.now_ms()))
        return "deleted"

    async def body(engine: Engine) -> None:
        for number in range(40):
            await engine.execute(create(engine, f"s{number}", b"data;"))
        await engine.execute(create(engine, "busy"))
        machine.disk.full = True
        outcomes: list[str] = []
        for number in range(0, 40, 2):
            works = [put(engine, "busy", 3500) for _ in range(3)] + [delete(engine, number + more) for more in (0, 1)]
            outcomes += await asyncio.gather(*map(later, works))
        assert "refused" in outcomes
        assert outcomes.count("deleted") == 40
        machine.disk.full = False

    machine.run(body)


@pytest.mark.parametrize("segments", [0, 1, 2, 3])
def test_the_state_does_not_flap_when_a_little_space_returns(segments: int, caplog: pytest.LogCaptureFixture) -> None:
    """There is room for the reserve and some segments, and clients retry for a minute."""
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "busy"))
        await fill(machine, engine)
        machine.disk.add_capacity(machine.reserve_bytes + segments * SEGMENT)
        for _ in range(600):
            await put(engine, "busy", 10)
            await asyncio.sleep(0.1)
        machine.disk.full = False

    with caplog.at_level(logging.WARNING):
        machine.run(body)
    assert caplog.text.count("the disk is full") <= 1 + segments
    assert caplog.text.count("the disk has free space again") <= 1 + segments


def test_space_must_be_there_at_two_checks() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "busy"))
        await fill(machine, engine)
        for _ in range(10):  # it appears for less than the time between two checks
            machine.disk.full = False
            await asyncio.sleep(bounds.FULL_RETRY_S * 0.6)
            machine.disk.full = True
            await asyncio.sleep(bounds.FULL_RETRY_S * 2)
            assert engine._store.full
        machine.disk.full = False

    machine.run(body)


def test_a_segment_is_begun_only_with_allocated_blocks() -> None:
    """The newest segment always has room for a seal, also if it was begun on a full disk."""
    machine = Machine()

    async def body(engine: Engine) -> None:
        names = [f"s{number}" for number in range(100)]
        for name in ["busy", *names]:
            await engine.execute(create(engine, name, b"data;"))
        await fill(machine, engine)
        for name in names:
            await engine.execute(Delete(name, engine.now_ms()))
            begun = [node.data for name, node in sorted(machine.disk.nodes.items()) if name[0] == "0"]
            assert all(len(data.rstrip(b"\0")) + SEAL_BYTES <= len(data) for data in begun[-1:])
        machine.disk.full = False

    machine.run(body)
