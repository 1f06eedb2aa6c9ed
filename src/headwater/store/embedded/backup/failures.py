"""What can go wrong with a backup or a restore. Each says what to do."""

from __future__ import annotations


class BackupError(Exception):
    """A backup or a restore that cannot be made as it was asked for."""


class TargetError(BackupError):
    """The target did not take or give something. It can be tried again."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}. Check the target; what was copied so far is kept and not copied again.")


class MissingError(BackupError):
    """Something that a backup needs is not in its target."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(f"{url} lacks {what}. Restore another moment, or from another target.")


class DamagedBackupError(BackupError):
    """A file of a target is not what was written there."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}. Restore another moment, or from another target.")


class UnfitSourceError(BackupError):
    """The index is written to faster than it can be copied; it can be tried again."""


class GapError(Exception):
    """Batches of the journal are gone before they were copied: a new base is needed."""


class DivergedError(Exception):
    """The journal has other batches than the target: it was cut, or the directory was copied."""
