"""Continuous backup: failures are reported and retried, and a last step runs at the stop."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from headwater import limits
from headwater.store.embedded.backup.backing_up import Backup, Copy, base_every_s, follow
from headwater.store.embedded.backup.failures import BackupError, TargetError


class Steps:
    """A backup with given results of its steps, which is stopped after the last one."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.stop = threading.Event()
        self.done: list[str] = []
        self._outcomes = list(outcomes)

    def step(self, base_every: float) -> Copy:
        self.done.append("step")
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if not self._outcomes:
            self.stop.set()
        if outcome is not None:
            raise outcome
        return Copy(0, 0, 0, 0)

    def prune(self, keep_s: float) -> int:
        self.done.append("prune")
        return 0

    def record(self) -> None:
        self.done.append("record")


def run(steps: Steps, keep_s: float | None = None) -> list[str]:
    reports: list[str] = []
    follow(cast(Backup, steps), steps.stop, 0.0, keep_s, reports.append)
    return reports


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_RETRY_S", 0.001)


def test_a_failing_target_is_reported_and_retried() -> None:
    steps = Steps(None, TargetError("target", "no room"), TargetError("target", "no room"), OSError("away"), None)
    reports = run(steps)
    assert len(reports) == 4
    assert "retried in 0 s: target: no room. Check the target" in reports[0]
    assert reports[-1] == "the backup is up to date again"
    assert steps.done == ["step"] * 6 + ["record"]


def test_a_permanent_error_stops_the_backup() -> None:
    with pytest.raises(BackupError, match="another directory"):
        run(Steps(BackupError("another directory")))


def test_old_backups_are_removed_once_an_hour() -> None:
    steps = Steps(None, None, None)
    run(steps, keep_s=86_400.0)
    assert steps.done == ["step", "prune", "step", "step", "step", "record"]
    assert base_every_s(86_400.0) == 43_200.0
    assert base_every_s(None) == limits.BACKUP_BASE_S
