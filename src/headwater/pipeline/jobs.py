"""A job that runs: what it has done, how far it is behind, and how it ends."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done since it was started, and what is left."""

    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0  # of the last batch
    lag_bytes: dict[str, int] = {}  # by stream, where it is known


class Job(Protocol):
    """What `archive`, `materialize`, `publish` and `snapshot` return."""

    name: str

    @property
    def is_active(self) -> bool:
        """Whether it is still running."""

    def progress(self) -> Progress:
        """What it has done since it was started."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended; raises what ended it if it failed."""

    def stop(self) -> None:
        """End it after the batch that it works on."""
