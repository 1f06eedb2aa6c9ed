"""A server with a lease: which writes it takes in which state, and what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.engine import Engine
from headwater.errors import LeaseLostError, NotReadyError, OptionError
from headwater.limits import Limits
from headwater.log.commands import Delete
from headwater.server.fencing import Fence, leased
from headwater.server.http import Request
from headwater.server.observing import probes
from headwater.server.service import Service
from headwater.server.settings import Settings, load_settings
from headwater.store.embedded.backup import leases
from headwater.store.embedded.backup.leases import LeaseHolder
from headwater.store.embedded.backup.targets import DirectoryTarget, claim
from headwater.store.memory import MemoryStore
from tests.unit.store.embedded.backup.test_leases import LEASE_S, Clock
from tests.unit.store.embedded.test_directory import append, create


def test_writes_are_refused_without_the_lease(tmp_path: Path) -> None:
    clock, target = Clock(), DirectoryTarget(tmp_path)
    lease = LeaseHolder(target, "old", "server", LEASE_S, clock)
    fence = Fence(lease, accept=False)

    async def refused(engine: Engine, reason: str) -> None:
        for write in (append(engine, "a", b"1"), create(engine, "b"), engine.execute(Delete("a", engine.now_ms()))):
            with pytest.raises(LeaseLostError, match=reason) as caught:
                await write
            assert (caught.value.status, caught.value.retryable, caught.value.code) == (503, True, "lease-lost")
        service = Service(engine, Limits(), fence=fence)
        with pytest.raises(NotReadyError, match=reason):
            await probes.readyz(service, Request("GET", "/readyz", "", {}, b""), "")

    async def main() -> None:
        engine = Engine(MemoryStore(), fence=fence.refusal)
        await engine.start()
        await refused(engine, "waits for its lease")
        lease.renew()
        await create(engine, "a")
        await append(engine, "a", b"1")
        clock.advance(LEASE_S)
        await refused(engine, "target does not answer")
        lease.renew()
        await append(engine, "a", b"2")
        leases.force(target, "new")
        await append(engine, "a", b"3")  # it does not know yet: a promotion waits for this
        lease.renew()
        await refused(engine, "belongs to another server")
        assert (await engine.info("a")).tail == 3  # reads go on
        await engine.stop()

    asyncio.run(main())


def test_a_server_may_go_on_while_nobody_took_its_lease(tmp_path: Path) -> None:
    clock, target = Clock(), DirectoryTarget(tmp_path)
    lease = LeaseHolder(target, "old", "server", LEASE_S, clock)
    fence = Fence(lease, accept=True)
    assert fence.refusal() is not None
    lease.renew()
    clock.advance(2 * LEASE_S)
    assert (fence.held, fence.refusal()) == (False, None)
    leases.force(target, "new")
    lease.renew()
    assert fence.refusal() is not None


def test_the_lease_of_a_run(tmp_path: Path) -> None:
    """It is held while the server runs, and free for the next server on the directory afterwards."""
    (tmp_path / "data").mkdir()
    target = DirectoryTarget(tmp_path / "target")
    claim(target)
    settings = Settings(lease=str(tmp_path / "target"), data_dir=tmp_path / "data", limits=Limits(lease_s=60.0))

    async def main() -> None:
        for term in (1, 2):
            async with leased(settings) as fence:
                assert fence is not None
                assert fence.held
                lease = leases.newest(target)
                assert lease is not None
                assert (lease.term, bool(lease.holder)) == (term, True)
            lease = leases.newest(target)
            assert lease is not None
            assert (lease.term, lease.holder) == (term, "")
        async with leased(Settings()) as none:
            assert none is None

    asyncio.run(main())


def test_a_server_in_memory_has_no_lease() -> None:
    with pytest.raises(OptionError, match="--lease: a server that keeps its data in memory"):
        load_settings({"lease": "backups", "memory": True}, {})
    with pytest.raises(OptionError, match="--lease-unreachable: expected one of refuse, accept"):
        load_settings({"lease_unreachable": "perhaps"}, {})
