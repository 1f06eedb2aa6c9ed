"""One run at a time on a checkpoint, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import limits
from headwater.errors import JobConflictError
from headwater.pipeline.locking import lock_checkpoint
from headwater.pipeline.running import Step, start_loop
from tests.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PIPELINE_LOCK_WAIT_S", 0.02)


def test_a_checkpoint_is_locked_once(tmp_path: Path) -> None:
    lock = lock_checkpoint(tmp_path / "new")
    with pytest.raises(JobConflictError, match=r"uses the checkpoint .*new"):
        lock_checkpoint(tmp_path / "new")
    lock.release()
    lock.release()
    lock_checkpoint(tmp_path / "new").release()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from headwater.pipeline.locking import lock_checkpoint\n"
        "lock = lock_checkpoint(pathlib.Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(JobConflictError):
            lock_checkpoint(tmp_path)
        process.kill()
    lock_checkpoint(tmp_path).release()


def test_a_loop_holds_its_checkpoint_until_it_ends(tmp_path: Path) -> None:
    release = threading.Event()

    def steps() -> Iterator[Step]:
        release.wait(LIMIT_S)
        yield Step(rows=1)
        raise OSError("no")

    job = start_loop(steps, name="first", once=True, checkpoint=tmp_path)
    with pytest.raises(JobConflictError):
        start_loop(steps, name="second", once=True, checkpoint=tmp_path)
    release.set()
    with pytest.raises(OSError, match="no"):
        job.wait(LIMIT_S)
    lock_checkpoint(tmp_path).release()
