"""Leases of targets, with clocks that the tests move: never two servers that may take writes."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from headwater import limits
from headwater.store.embedded.backup import leases
from headwater.store.embedded.backup.failures import BackupError, TargetError
from headwater.store.embedded.backup.formats import FORMAT, FORMAT_NAME
from headwater.store.embedded.backup.leases import Lease, LeaseHolder, LeaseState, Renewal, directory_id, holder_id
from headwater.store.embedded.backup.targets import BackupTarget, DirectoryTarget, claim, open_target
from tests.unit.store.embedded.backup.test_s3 import bucket, endpoint

__all__ = ["bucket", "endpoint"]  # fixtures
LEASE_S = 10.0


class Clock:
    def __init__(self, rate: float = 1.0) -> None:
        self.now_s = 0.0
        self.rate = rate

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds * self.rate


class Cut(DirectoryTarget):
    """A target that can be out of reach, before an operation or after it."""

    cut = ""

    def put(self, name: str, data: bytes) -> None:
        if self.cut == "before":
            raise TargetError(self.url, "no route")
        super().put(name, data)
        if self.cut == "after":
            raise TargetError(self.url, "no route")


@pytest.fixture(params=["directory", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    where = str(tmp_path / "target") if request.param == "directory" else request.getfixturevalue("bucket")
    opened = open_target(where)
    claim(opened)
    return opened


def holder(target: BackupTarget, clock: Clock, directory: str = "old", name: str = "server") -> LeaseHolder:
    return LeaseHolder(target, directory, name, LEASE_S, clock)


def state(lease: LeaseHolder) -> LeaseState:
    return lease.state


def test_a_lease_is_held_renewed_and_ends(target: BackupTarget) -> None:
    clock = Clock()
    lease = holder(target, clock)
    assert state(lease) is LeaseState.WAITING
    lease.renew()
    assert state(lease) is LeaseState.HELD
    clock.advance(9)
    lease.renew()
    clock.advance(9.9)
    assert state(lease) is LeaseState.HELD
    clock.advance(0.1)
    assert state(lease) is LeaseState.EXPIRED
    lease.renew()
    assert state(lease) is LeaseState.HELD


def test_the_time_of_a_renewal_counts_from_before_it(tmp_path: Path) -> None:
    """A write that takes long must not make the lease last longer."""
    clock = Clock()

    class Slow(DirectoryTarget):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, data)
            clock.advance(4)

    target = Slow(tmp_path)
    target.put(FORMAT_NAME, FORMAT)
    lease = holder(target, clock)
    lease.renew()
    clock.advance(5.9)
    assert state(lease) is LeaseState.HELD
    clock.advance(0.1)
    assert state(lease) is LeaseState.EXPIRED


def test_promotion_fences_the_old_server_for_good(target: BackupTarget) -> None:
    old_clock, waits = Clock(), list[float]()
    old = holder(target, old_clock)
    old.renew()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        old_clock.advance(seconds)
        assert state(old) is LeaseState.EXPIRED  # it does not even know why

    granted = leases.promote(target, "new", wait=wait, report=lambda _: None)
    assert waits == [pytest.approx(LEASE_S * limits.LEASE_DRIFT)]
    assert granted == Lease(2, "new", "", LEASE_S)
    for _ in range(2):
        old.renew()
        assert state(old) is LeaseState.LOST
    assert "term 2 belongs to another directory" in old.reason
    again = holder(target, old_clock)  # the old server is started again
    again.renew()
    assert state(again) is LeaseState.LOST
    new = holder(target, Clock(), "new", "standby")
    new.renew()
    assert state(new) is LeaseState.HELD
    assert leases.newest(target) == Lease(3, "new", "standby", LEASE_S)


def test_a_target_without_a_lease_cannot_fence(target: BackupTarget) -> None:
    with pytest.raises(BackupError, match=r"cannot be fenced.*--force"):
        leases.promote(target, "new", wait=lambda _: None, report=lambda _: None)
    assert leases.force(target, "new") == Lease(1, "new", "", 0.0)


def test_a_promotion_that_was_killed_is_repeated(target: BackupTarget) -> None:
    holder(target, Clock()).renew()

    def killed(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leases.promote(target, "new", wait=killed, report=lambda _: None)
    new = holder(target, Clock(), "new", "standby")
    new.renew()
    assert state(new) is LeaseState.WAITING  # the promotion did not finish: wait here instead
    waits = list[float]()
    granted = leases.promote(target, "new", wait=waits.append, report=lambda _: None)
    assert len(waits) == 1
    assert granted.holder == ""
    assert leases.promote(target, "new", wait=waits.append, report=lambda _: None) == granted
    assert len(waits) == 1


def test_a_restart_needs_no_wait_and_another_machine_does(target: BackupTarget) -> None:
    clock = Clock()
    holder(target, clock).renew()
    restarted = holder(target, clock)  # after a kill: the same directory in the same boot
    restarted.renew()
    assert state(restarted) is LeaseState.HELD
    rebooted = holder(target, clock, name="after a reboot, or a copy")
    rebooted.renew()
    assert state(rebooted) is LeaseState.WAITING
    restarted.renew()
    assert state(restarted) is LeaseState.LOST
    clock.advance(LEASE_S * limits.LEASE_DRIFT)
    rebooted.renew()
    assert state(rebooted) is LeaseState.HELD
    rebooted.release()
    assert state(rebooted) is not LeaseState.HELD
    next_one = holder(target, clock, name="a third")
    next_one.renew()
    assert state(next_one) is LeaseState.HELD
    assert list(target.sizes(leases.LEASES)) == [leases.name_of(3)]


def test_a_lease_whose_file_is_damaged_belongs_to_nobody(target: BackupTarget) -> None:
    clock = Clock()
    lease = holder(target, clock)
    lease.renew()
    assert target.create(leases.name_of(2), b"")
    lease.renew()
    assert state(lease) is LeaseState.LOST
    assert leases.force(target, "old").term == 3


@pytest.mark.parametrize("seed", range(30))
def test_never_two_holders(seed: int, tmp_path: Path) -> None:
    """Random renewals, cuts, restarts and promotions, with clocks that run at different rates."""
    rng = random.Random(seed)
    clocks = [Clock(rng.uniform(0.96, 1.04)) for _ in range(3)]
    targets = [Cut(tmp_path) for _ in clocks]
    claim(targets[0])
    holders = [holder(targets[n], clocks[n], f"d{n}", f"s{n}") for n in range(3)]

    def check() -> None:
        assert sum(one.state is LeaseState.HELD for one in holders) <= 1

    def advance(seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, 0.5)
            for clock in clocks:
                clock.advance(step)
            check()
            if rng.random() < 0.3:
                act(rng.randrange(3))
            seconds -= step

    def act(n: int) -> None:
        targets[n].cut = rng.choice(("", "", "", "before", "after"))
        with contextlib.suppress(TargetError):
            holders[n].renew()
        check()

    def promote(n: int) -> None:
        targets[n].cut = ""
        rate = clocks[n].rate

        def wait(seconds: float) -> None:
            advance(seconds / rate)

        try:
            leases.promote(targets[n], f"d{n}", wait=wait, report=lambda _: None)
        except BackupError:
            return
        holders[n] = holder(targets[n], clocks[n], f"d{n}", f"s{n}")

    for _ in range(40):
        advance(rng.uniform(0, 4))
        if rng.random() < 0.15:
            promote(rng.randrange(3))
        elif rng.random() < 0.2:
            n = rng.randrange(3)
            holders[n] = holder(targets[n], clocks[n], f"d{n}", f"s{n}{rng.choice(('', 'b'))}")
        check()


def test_who_a_directory_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    number = directory_id(directory)
    assert directory_id(directory) == number
    assert (directory / "backup" / "lease.id").stat().st_mode & 0o777 == 0o600
    shutil.copytree(directory, tmp_path / "copy")
    assert directory_id(tmp_path / "copy") == number
    assert holder_id(tmp_path / "copy") != holder_id(directory) == holder_id(directory)


def test_changes_are_reported_once(tmp_path: Path) -> None:
    clock, target, reports = Clock(), Cut(tmp_path), list[tuple[str, LeaseState]]()
    renewal = Renewal(holder(target, clock), 3600.0, lambda problem, state: reports.append((problem, state)))
    renewal.look()
    renewal.look()
    assert reports == [("", LeaseState.HELD)]
    target.cut = "before"
    renewal.look()
    clock.advance(LEASE_S)
    renewal.look()
    renewal.look()
    assert [state for _, state in reports[1:]] == [LeaseState.HELD, LeaseState.EXPIRED]
    assert all("no route" in problem for problem, _ in reports[1:])
    target.cut = ""
    renewal.look()
    assert reports[3:] == [("", LeaseState.HELD)]
