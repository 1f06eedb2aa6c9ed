"""Backups are watched: targets that hang, the state that the server reads, and who owns the files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headwater.store.contract import BackupReport
from headwater.store.embedded import opening
from headwater.store.embedded.backup.backing_up import open_backup
from headwater.store.embedded.backup.failures import MissingError, TargetError
from headwater.store.embedded.backup.status import spans_of
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.backup.timed import TimedTarget
from headwater.store.embedded.backup.watching import backups_of
from headwater.store.embedded.opening import _space
from tests.contract.stores import InlineFolder
from tests.programs import needed
from tests.unit.store.embedded.backup.test_backing_up import live, now_ms, writing
from tests.waiting import wait_until

HANGING_S = 0.2
FAR_S = 60.0


@pytest.fixture(autouse=True)
def _inline_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SubprocessFolder", InlineFolder)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    live(tmp_path / "data", writing("one;"))
    return tmp_path / "data"


class Hanging(DirectoryTarget):
    """A file system that does not answer until it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()
        self.answers.set()

    def put(self, name: str, data: bytes) -> None:
        self.answers.wait()
        super().put(name, data)


def test_a_target_that_hangs_is_an_error_and_recovers(directory: Path, tmp_path: Path) -> None:
    inner = Hanging(tmp_path / "target")
    with open_backup(directory, TimedTarget(inner, FAR_S)) as backup:
        backup.step(FAR_S)
    (done,) = backups_of(directory)
    assert (done.failures, done.failing) == (0, False)
    target = TimedTarget(inner, FAR_S)
    live(directory, writing("two;"))
    inner.answers.clear()
    with open_backup(directory, target) as backup:
        target._limit_s = HANGING_S
        for _ in range(2):  # the second fails at once, since the first still hangs
            with pytest.raises(TargetError, match="has not answered for"):
                backup.step(FAR_S)
        assert len([one for one in threading.enumerate() if one.name == "headwater-target"]) == 1
        (hanging,) = backups_of(directory)
        assert hanging == BackupReport(done.reached_ms, 2, failing=True)
        inner.answers.set()
        target._limit_s = FAR_S
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "headwater-target"])
        backup.step(FAR_S)
    (again,) = _space(directory).backups  # what the server reads
    assert (again.failures, again.failing) == (2, False)
    assert done.reached_ms < again.reached_ms <= now_ms()


def test_the_status_of_a_target_that_hangs(tmp_path: Path) -> None:
    """As on a network file system whose server is gone: an open blocks."""
    os.mkfifo(tmp_path / "FORMAT")
    with pytest.raises(TargetError, match="has not answered"):
        spans_of(TimedTarget(DirectoryTarget(tmp_path), HANGING_S))
    os.close(os.open(tmp_path / "FORMAT", os.O_RDWR | os.O_NONBLOCK))  # ends the thread


def test_other_errors_pass_through(tmp_path: Path) -> None:
    target = TimedTarget(DirectoryTarget(tmp_path), FAR_S)
    with pytest.raises(MissingError):
        target.get("nothing")
    with pytest.raises(TargetError, match="FORMAT is missing"):
        target.create("a", b"1")
    target.put("FORMAT", b"")
    assert target.create("a", b"1")
    assert not target.create("a", b"2")
    assert target.get("a") == b"1"
    target.put("folder/1", b"")
    target.put("folder/2", b"22")
    assert target.sizes("folder/", "folder/1") == {"folder/2": 2}


def test_a_state_that_cannot_be_read_counts_as_failing(directory: Path) -> None:
    assert backups_of(directory) == ()
    (directory / "backup" / "0123").mkdir(parents=True)
    (directory / "backup" / "0123" / "state.json").write_text("{")
    assert backups_of(directory) == (BackupReport(0, 0, failing=True),)


@pytest.mark.skipif(os.geteuid() != 0, reason=needed("root"))
def test_files_of_a_backup_by_root_belong_to_the_owner_of_the_directory(directory: Path, tmp_path: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, 12345, 12345)
    with open_backup(directory, DirectoryTarget(tmp_path / "target")) as backup:
        backup.step(FAR_S)
        assert {path.stat().st_uid for path in (directory, *directory.rglob("*"))} == {12345}
