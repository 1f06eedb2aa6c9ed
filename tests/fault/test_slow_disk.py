"""Concurrent requests on a slow disk, and recovery after a kill: single cases of the simulation.

`test_simulation.py` runs the same kind of work from seeds, with slow loads and slow syncs.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import HeadwaterError, StorageFullError, StreamGoneError, StreamNotFoundError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, Expire, ForkRequest
from headwater.log.offsets import BEGINNING
from headwater.store.embedded import newest
from headwater.store.embedded.disk import Reserve
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.store import EmbeddedStore, Parts
from tests.fault.copies import Directory
from tests.fault.lives import LoopClock
from tests.fault.sim import SimFolder, SimIndex, SimLoop, SimReaders, SimRunner, SimSyncer, connect
from tests.fault.sim_disk import CrashError, SimDisk
from tests.journals import NEW

LIMITS = Limits(segment_bytes=4096, fold_idle_s=3600, expiry_sweep_s=3600, unfolded_segments_max=50)


class Machine:
    """A simulated machine with given delays of its disk."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = SimDisk(random.Random(seed))
        newest.create(self.disk, NEW)
        self.index = SimIndex()
        self.read_s = (0.0, 0.0)  # before and after a read of the index
        self.sync_s = 0.0
        self.folds = True

    def store(self) -> EmbeddedStore:
        machine = self

        class Readers(SimReaders):
            def delays_s(self) -> tuple[float, float]:
                return machine.read_s

        class Syncer(SimSyncer):
            def delay_s(self) -> float:
                return machine.sync_s

        class Folder(SimFolder):
            async def fold(self, number: int) -> int:
                if not machine.folds:
                    await asyncio.sleep(1e9)
                return await super().fold(number)

        parts = Parts(
            disk=self.disk,
            connect=lambda: connect(self.disk, self.index),
            syncer=Syncer(self.disk),
            helper=SimRunner(self.disk),
            writer=SimRunner(self.disk),
            folder=Folder(self.disk, self.index),
            readers=Readers(self.disk),
            salt=lambda: self.disk.random.getrandbits(32),
            reserve=Reserve(self.disk, 1),
        )
        return EmbeddedStore(parts, recover(self.disk, connect(self.disk, self.index)), LIMITS)

    def run(self, body: Callable[[Engine], Awaitable[None]]) -> None:
        """Run one life, which ends with the body, or with a CrashError."""

        async def live() -> None:
            engine = Engine(self.store(), LIMITS, clock=LoopClock())
            await engine.start()
            await body(engine)
            self.read_s, self.sync_s = (0.0, 0.0), 0.0
            await engine.stop()

        loop = SimLoop()
        try:
            loop.run_until_complete(live())
        except CrashError:
            pass
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.close()
            self.index.restart()

    def check(self) -> None:
        Directory(self.disk, self.index).check()


def create(engine: Engine, path: str, **more: object) -> Create:
    return Create(path=path, now_ms=engine.now_ms(), content_type="text/plain", **more)  # type: ignore[arg-type]


def append(engine: Engine, path: str, data: bytes) -> Append:
    return Append(path, engine.now_ms(), data, "text/plain")


async def fold_and_evict(engine: Engine) -> None:
    await engine._store.fold()  # type: ignore[attr-defined]
    for _ in range(2):
        await engine._catalogue.evict(0, 0)


async def content(engine: Engine, path: str) -> bytes:
    return (await engine.read(Read(path, bytes_max=1 << 20))).data


# Deletes, expiry and loads that interleave


def test_a_deletion_holds_despite_a_concurrent_sweep_and_create() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "other", body=b"one"))
        middle = (await engine.execute(append(engine, "other", b"two"))).tail
        await engine.execute(append(engine, "other", b"three"))
        await engine.execute(create(engine, "source", body=b"src"))
        await engine.execute(create(engine, "fork", fork=ForkRequest("source"), ttl_s=10))
        await engine.execute(create(engine, "bystander"))
        await fold_and_evict(engine)
        await asyncio.sleep(11)  # the fork has expired
        machine.read_s, machine.sync_s = (0.3, 0.0), 0.2
        put = asyncio.ensure_future(engine.execute(create(engine, "fork", fork=ForkRequest("other", middle))))
        await asyncio.sleep(0.15)
        sweep = asyncio.ensure_future(engine.execute(Expire("fork", engine.now_ms())))
        delete = asyncio.ensure_future(engine.execute(Delete("source", engine.now_ms())))
        await asyncio.gather(put, sweep, delete)
        with pytest.raises(StreamNotFoundError):
            await engine.execute(append(engine, "source", b"ghost"))
        await engine.execute(append(engine, "bystander", b"acknowledged"))
        await fold_and_evict(engine)

    async def again(engine: Engine) -> None:
        assert await content(engine, "bystander") == b"acknowledged"
        assert await content(engine, "fork") == b"onetwo"
        with pytest.raises(StreamNotFoundError):
            await engine.info("source")

    machine.run(body)
    machine.check()
    machine.run(again)


def test_a_load_by_path_does_not_restore_a_stream_that_was_loaded_by_id_and_deleted() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "source", body=b"src"))
        await engine.execute(create(engine, "fork", fork=ForkRequest("source")))
        await fold_and_evict(engine)
        machine.read_s = (0.0, 0.5)
        looking = asyncio.ensure_future(engine.info("source"))
        await asyncio.sleep(0.1)
        machine.read_s = (0.0, 0.0)
        await engine.execute(Delete("fork", engine.now_ms()))  # loads the source by its id
        await engine.execute(Delete("source", engine.now_ms()))
        await asyncio.gather(looking, return_exceptions=True)
        with pytest.raises(StreamNotFoundError):
            await engine.execute(append(engine, "source", b"ghost"))
        assert len(engine._catalogue) == 0

    machine.run(body)
    machine.check()


def test_a_load_during_a_fold_finds_the_newest_state() -> None:
    """The index is read before the fold, and the result arrives after it, so folded data was in neither."""
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;"))
        await fold_and_evict(engine)
        await engine.execute(append(engine, "a", b"two;"))
        for _ in range(2):
            await engine._catalogue.evict(0, 0)
        machine.read_s = (0.0, 1.0)
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"three;")))
        listing = asyncio.ensure_future(engine.page("", "", 10))
        await asyncio.sleep(0.1)
        await engine._store.fold()  # type: ignore[attr-defined]
        await appending
        assert [stream.tail >= 8 for stream in (await listing).streams] == [True]
        assert await content(engine, "a") == b"one;two;three;"

    machine.run(body)
    machine.check()


def test_a_load_during_a_rollback_finds_the_durable_state() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;"))
        await fold_and_evict(engine)
        await engine.info("a")
        machine.read_s = (0.5, 0.0)
        machine.disk.no_descriptors = errno.EMFILE
        refused = asyncio.ensure_future(engine.execute(append(engine, "a", b"two;")))
        forking = asyncio.ensure_future(engine.execute(create(engine, "f", fork=ForkRequest("a", BEGINNING, 1))))
        for command in (refused, forking):
            with pytest.raises(StorageFullError, match="Too many open files"):
                await command
        machine.disk.no_descriptors = 0
        await asyncio.sleep(10)
        await engine.execute(append(engine, "a", b"three;"))
        assert await content(engine, "a") == b"one;three;"

    machine.run(body)
    machine.check()


def test_a_fork_uses_the_record_of_its_own_source() -> None:
    """The source is deleted and created again while a create looks for the sub-offset in it."""
    machine = Machine()

    async def body(engine: Engine) -> None:
        def created(path: str, body: bytes, **more: object) -> Create:
            return Create(
                path=path,
                now_ms=engine.now_ms(),
                content_type="application/json",
                body=body,
                **more,  # type: ignore[arg-type]
            )

        await engine.execute(created("s", b'[1, 2, "x"]'))
        await fold_and_evict(engine)
        await engine.info("s")
        machine.read_s = (0.5, 0.0)
        fork = asyncio.ensure_future(engine.execute(created("f", b"[0]", fork=ForkRequest("s", BEGINNING, 2))))
        await asyncio.sleep(0.7)  # the create reads the record
        await engine.execute(Delete("s", engine.now_ms()))
        await engine.execute(created("s", b'["longer", "longest", "x"]'))
        await fork
        assert await content(engine, "f") == b'"longer","longest",0,'

    machine.run(body)
    machine.check()


def test_a_slow_request_does_not_restore_an_expired_stream() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;", ttl_s=10))
        await fold_and_evict(engine)
        await asyncio.sleep(9.5)
        machine.read_s = (1.0, 0.0)
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"late;")))
        await asyncio.sleep(0.6)
        with pytest.raises(StreamNotFoundError):
            await engine.info("a")
        with pytest.raises(StreamNotFoundError):
            await appending

    machine.run(body)


def test_an_expired_stream_is_not_seen_while_its_deletion_is_written() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;", ttl_s=10))
        await engine.execute(create(engine, "f", fork=ForkRequest("a"), ttl_s=100))
        await asyncio.sleep(11)
        machine.sync_s = 1.0
        sweep = asyncio.ensure_future(engine.execute(Expire("a", engine.now_ms())))
        await asyncio.sleep(0.5)
        with pytest.raises(StreamGoneError):
            await engine.info("a")
        await sweep

    machine.run(body)


# Recovery


@pytest.mark.parametrize("seed", range(8))
def test_data_in_the_page_cache_after_a_kill_is_synced_at_recovery(seed: int) -> None:
    """The process is killed between writing and syncing a seal and restarted, and power is lost before the fold."""
    machine = Machine(seed)
    machine.folds = False

    async def killed_at_the_seal(engine: Engine) -> None:
        await engine.execute(create(engine, "a"))
        for number in range(3):
            await engine.execute(append(engine, "a", b"%d;" % number))
        machine.disk.crash_in = 3  # write, written, sync
        engine._store._journal.roll()  # type: ignore[attr-defined]

    async def goes_on(engine: Engine) -> None:
        for number in range(3, 6):
            await engine.execute(append(engine, "a", b"%d;" % number))
        raise CrashError

    async def look(engine: Engine) -> None:
        assert await content(engine, "a") == b"0;1;2;3;4;5;"

    machine.run(killed_at_the_seal)
    machine.disk.restart(power_lost=False)
    machine.run(goes_on)
    machine.disk.restart(power_lost=True)
    machine.check()
    machine.run(look)


@pytest.mark.parametrize("seed", range(8))
def test_data_in_the_page_cache_after_a_failed_sync_is_rewritten(seed: int) -> None:
    """The kernel marks pages as clean although their write failed, so another sync does not write them."""
    machine = Machine(seed)

    async def fails(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;"))
        machine.disk.failing_sync_in = 0
        with pytest.raises(HeadwaterError):
            await engine.execute(append(engine, "a", b"two;"))
        raise CrashError

    seen = b""

    async def look(engine: Engine) -> None:
        nonlocal seen
        seen = await content(engine, "a")
        raise CrashError

    async def look_again(engine: Engine) -> None:
        assert await content(engine, "a") == seen

    machine.run(fails)
    machine.disk.restart(power_lost=False)
    machine.run(look)
    machine.disk.restart(power_lost=True)
    machine.run(look_again)


def test_a_server_starts_while_the_disk_is_full() -> None:
    machine = Machine()

    async def torn(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;"))
        machine.disk.crash_in = 3
        appending = asyncio.ensure_future(engine.execute(append(engine, "a", b"two;")))
        await asyncio.wait((appending,), timeout=1)
        raise CrashError

    async def full(engine: Engine) -> None:
        assert (await content(engine, "a")).startswith(b"one;")
        with pytest.raises(StorageFullError):
            await asyncio.gather(*[engine.execute(append(engine, "a", b"x" * 1000)) for _ in range(10)])
        machine.disk.full = False
        await asyncio.sleep(5)
        await engine.execute(append(engine, "a", b"room;"))
        assert (await content(engine, "a")).endswith(b"room;")

    machine.run(torn)
    machine.disk.restart(power_lost=False)
    machine.disk.full = True
    machine.run(full)
    machine.check()


def test_running_out_of_descriptors_is_temporary() -> None:
    machine = Machine()

    async def body(engine: Engine) -> None:
        await engine.execute(create(engine, "a", body=b"one;"))
        await fold_and_evict(engine)
        machine.disk.no_descriptors = errno.ENFILE
        with pytest.raises(StorageFullError, match="Too many open files in system"):
            await engine.execute(append(engine, "a", b"two;"))
        assert await content(engine, "a") == b"one;"  # read from the index, over an open connection
        machine.disk.no_descriptors = 0
        await asyncio.sleep(5)
        await engine.execute(append(engine, "a", b"three;"))
        machine.disk.no_descriptors = errno.EMFILE
        await asyncio.sleep(10)
        machine.disk.no_descriptors = 0
        await asyncio.sleep(5)
        await engine.execute(append(engine, "a", b"four;"))
        assert await content(engine, "a") == b"one;three;four;"

    machine.run(body)
    machine.check()
