"""The state of a backup, in a file of the data directory: the server reads it for its metrics.

A backup is another process, which may hang or be gone. So the file says up to which moment everything is in the target,
and whoever reads it computes the age.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from headwater import limits
from headwater.store.contract import BackupReport
from headwater.store.embedded.backup.identity import FOLDER
from headwater.store.embedded.layout import share

_NAME = "state.json"


class BackupState(msgspec.Struct):
    target: str
    reached_ms: int = 0  # everything acknowledged before this moment is in the target; 0: nothing yet
    failures: int = 0  # since the first backup to this target
    failing: str = ""  # why the last attempt failed; empty if it did not
    written_ms: int = 0


class Watch:
    """Writes the state of the backup to one target."""

    def __init__(self, directory: Path, folder: Path, url: str) -> None:
        self._directory = directory
        self._path = folder / _NAME
        self._state = _read(self._path) or BackupState(url)
        self._written_s = -limits.BACKUP_FOLLOW_S

    def succeeded(self, reached_ms: int) -> None:
        was_failing, self._state.failing = self._state.failing, ""
        self._state.reached_ms = reached_ms
        if was_failing or time.monotonic() - self._written_s >= limits.BACKUP_FOLLOW_S:
            self._write()

    def failed(self, error: BaseException) -> None:
        self._state.failures += 1
        self._state.failing = str(error)
        self._write()

    def _write(self) -> None:
        self._state.written_ms = int(time.time() * 1000)
        fresh = self._path.with_name(f"{_NAME}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self._state))
        share(fresh, self._directory)
        os.rename(fresh, self._path)
        self._written_s = time.monotonic()


def backups_of(directory: Path) -> tuple[BackupReport, ...]:
    """The backups of a data directory. One whose state cannot be read counts as failing."""
    reports = []
    for path in sorted((directory / FOLDER).glob(f"*/{_NAME}")):
        state = _read(path)
        if state is None:
            reports.append(BackupReport(reached_ms=0, failures=0, failing=True))
        else:
            reports.append(BackupReport(state.reached_ms, state.failures, bool(state.failing)))
    return tuple(reports)


def _read(path: Path) -> BackupState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=BackupState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
