"""Continuous backup: checks the journal every second, and retries after errors of the target."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.store.embedded.backup.backing_up import Backup
from headwater.store.embedded.backup.failures import TargetError, UnfitSourceError

_PASSING = (TargetError, UnfitSourceError, OSError, sqlite3.OperationalError)


def follow(
    backup: Backup, stop: threading.Event, every_s: float, keep_s: float | None, report: Callable[[str], None]
) -> None:
    """Back up until stopped, and once more at the end. Failures are reported, and when they end."""
    streak = Streak(Backoff(limits.BACKUP_RETRY_S, limits.BACKUP_RETRY_MAX_S))
    wait_s, pruned_s = 0.0, -limits.BACKUP_PRUNE_S
    while not stop.wait(wait_s):
        started_s = time.monotonic()
        try:
            backup.step(base_every_s(keep_s))
            if keep_s is not None and started_s - pruned_s > limits.BACKUP_PRUNE_S:
                backup.prune(keep_s)
                pruned_s = started_s
        except _PASSING as error:
            wait_s = streak.fail()
            report(f"the backup failed and is retried in {wait_s:.0f} s: {error}")
        else:
            if streak.failures:
                report("the backup is up to date again")
            streak.reset()
            wait_s = max(0.0, every_s - (time.monotonic() - started_s))
    backup.step(base_every_s(keep_s))
    backup.record()


def base_every_s(keep_s: float | None) -> float:
    """The interval of bases if little is written. Old data can only be removed after a newer base."""
    return limits.BACKUP_BASE_S if keep_s is None else min(limits.BACKUP_BASE_S, keep_s / 2)
