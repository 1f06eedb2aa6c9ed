"""`headwater restore` and `headwater promote`: options that exclude each other, owners, and refusals."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from headwater.store.embedded import opening
from headwater.store.embedded.backup import leases
from headwater.store.embedded.backup.standby import open_standby
from headwater.store.embedded.backup.targets import DirectoryTarget
from tests.command_line import invoke
from tests.contract.stores import InlineFolder
from tests.programs import needed
from tests.unit.store.embedded.backup.test_backing_up import back_up, live, writing

NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason=needed("root"))


@pytest.fixture(autouse=True)
def _inline_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SubprocessFolder", InlineFolder)


@pytest.fixture
def target(tmp_path: Path) -> DirectoryTarget:
    live(tmp_path / "data", writing("one;"))
    directory_target = DirectoryTarget(tmp_path / "target")
    back_up(tmp_path / "data", directory_target)
    return directory_target


def run(*arguments: str) -> tuple[int, str]:
    result = invoke(arguments)
    return result.exit_code, result.output


def owners(directory: Path) -> set[int]:
    return {path.stat().st_uid for path in (directory, *directory.rglob("*"))}


@as_root
def test_a_directory_that_root_restores(target: DirectoryTarget, tmp_path: Path) -> None:
    code, said = run("restore", target.url, "--to", str(tmp_path / "new"))
    assert (code, f"chown -R USER {tmp_path / 'new'}" in said) == (0, True)
    assert owners(tmp_path / "new") == {0}
    (tmp_path / "own").mkdir()
    os.chown(tmp_path / "own", NOBODY.pw_uid, NOBODY.pw_gid)
    code, said = run("restore", target.url, "--to", str(tmp_path / "own"))
    assert (code, "chown" in said, owners(tmp_path / "own")) == (0, False, {NOBODY.pw_uid})
    assert run("restore", target.url, "--to", str(tmp_path / "named"), "--owner", "nobody")[0] == 0
    assert owners(tmp_path / "named") == {NOBODY.pw_uid}
    code, said = run("restore", target.url, "--to", str(tmp_path / "other"), "--owner", "nobody-at-all")
    assert (code, "--owner: no such user" in said) == (2, True)


@as_root
def test_a_standby_that_root_promotes_belongs_to_the_owner_of_the_directory(
    target: DirectoryTarget, tmp_path: Path
) -> None:
    with open_standby(tmp_path / "standby", target) as standby:
        standby.step()
    os.chown(tmp_path / "standby", NOBODY.pw_uid, NOBODY.pw_gid)
    assert run("promote", str(tmp_path / "standby"), "--force")[0] == 0
    assert owners(tmp_path / "standby") == {NOBODY.pw_uid}


def test_a_promotion_without_a_lease_needs_force(target: DirectoryTarget, tmp_path: Path) -> None:
    to = tmp_path / "standby"
    with open_standby(to, target) as standby:
        standby.step()
    code, said = run("promote", str(to))
    assert (code, "cannot be fenced" in said) == (1, True)
    with open_standby(to, target) as standby:  # it goes on following
        assert standby.step().batches == 0
    code, said = run("promote", str(to), "--force")
    assert (code, f"promoted {to}" in said) == (0, True)
    lease = leases.newest(target)
    assert lease is not None
    assert lease.directory == leases.directory_id(to)
    live(to, writing("two;"))


def test_a_promotion_without_its_target_needs_force(target: DirectoryTarget, tmp_path: Path) -> None:
    to = tmp_path / "standby"
    with open_standby(to, target) as standby:
        standby.step()
    (tmp_path / "target").rename(tmp_path / "away")
    code, said = run("promote", str(to))
    assert (code, "cannot be fenced" in said or "has no backup" in said) == (1, True)
    code, said = run("promote", str(to), "--force")
    assert (code, "the old server is not fenced" in said, "is not applied" in said) == (0, True, True)
    live(to, writing("two;"))


def test_a_restored_directory_takes_the_lease(target: DirectoryTarget, tmp_path: Path) -> None:
    to = tmp_path / "restored"
    assert run("restore", target.url, "--to", str(to))[0] == 0
    code, said = run("promote", str(to))
    assert (code, "--target TARGET" in said) == (2, True)
    leases.create(target, leases.Lease(1, "old", "server", 0.01))
    code, said = run("promote", str(to), "--target", target.url)
    assert (code, "took term 2 of the lease" in said) == (0, True)
    lease = leases.newest(target)
    assert lease is not None
    assert (lease.term, lease.directory, lease.holder) == (2, leases.directory_id(to), "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("restore", "nowhere", "--to", "{}/x", "--follow", "--at", "1h"), "--follow and --at exclude each other"),
        (("promote", "{}/nothing"), "nothing is not a standby or a data directory. Check the path."),
        (("promote", "{}"), "is not a standby or a data directory. Check the path."),
        (("promote", "{}/waiting"), "is a standby without data. Let it copy a backup first: headwater restore TARGET"),
        (("backup", "{}/data", "{}/target", "--keep", "0s"), "--keep must be at least 1 minute"),
    ],
)
def test_calls_that_make_no_sense(
    arguments: tuple[str, ...], says: str, target: DirectoryTarget, tmp_path: Path
) -> None:
    (tmp_path / "waiting" / "standby").mkdir(parents=True)
    code, said = run(*(argument.format(tmp_path) for argument in arguments))
    assert code != 0
    assert says in said
