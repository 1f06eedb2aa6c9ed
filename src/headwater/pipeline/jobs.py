"""A running job: its progress, its lag, and how to stop it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done since its start, and its lag."""

    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0  # of the last batch
    lag_bytes: dict[str, int] = {}  # by stream, where it is known
    doing: str = ""  # what it does or waits for, if it is known


class Job(Protocol):
    """A running job, as returned by `archive`, `materialize`, `publish` and `snapshot`."""

    name: str

    @property
    def is_active(self) -> bool:
        """Whether it is still running."""

    def progress(self) -> JobProgress:
        """The progress since the start."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. True if the job has ended; raises its error if it failed."""

    def stop(self) -> None:
        """Stop the job after the current batch."""
