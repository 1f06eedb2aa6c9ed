"""Errors of backup and restore. Each message says what to do."""

from __future__ import annotations

from pathlib import Path


class BackupError(Exception):
    """A backup or restore is not possible as requested."""


class TargetError(BackupError):
    """A read or write of the target failed. It can be retried."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}. Check the target and try again; data that was copied is not copied again.")


class NoBackupYetError(TargetError):
    """The target has no complete backup. A standby waits for the first one."""

    def __init__(self, url: str) -> None:
        BackupError.__init__(
            self, f"{url} has no complete backup yet. Start one with: headwater backup DIRECTORY {url} --follow"
        )


class MissingError(BackupError):
    """A file of a backup is missing in the target."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(f"{url} lacks {what}. Restore another time, or from another target.")


class DamagedBackupError(BackupError):
    """A file of a target has other content than was written."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}. Restore another time, or from another target.")


class DamagedSourceError(BackupError):
    """The journal of the directory is not complete, so a backup of it would lack writes without anyone noticing."""

    def __init__(self, directory: Path, cause: Exception) -> None:
        super().__init__(
            f"{directory} is damaged, so nothing more of it is backed up: {cause}. The target keeps what it has. "
            f"Stop the server and run: headwater check {directory}"
        )


class UnfitSourceError(BackupError):
    """The index is written faster than it can be copied. It can be retried."""


class GapError(Exception):
    """Batches of the journal were removed before they were copied, so a new base is needed."""


class DivergedError(Exception):
    """The journal and the target have different batches: the journal was cut, or the directory was copied."""
