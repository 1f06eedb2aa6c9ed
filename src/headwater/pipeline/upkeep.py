"""Maintenance of the tables of a job: merges small files and deletes old ones."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headwater.errors import OptionError
from headwater.pipeline.lake import Lake


class Upkeep(msgspec.Struct, frozen=True):
    """Runs after every `compact_every` batches (0: never). Files are kept for `retain_hours` (None: forever)."""

    compact_every: int
    retain_hours: int | None

    def __post_init__(self) -> None:
        if self.retain_hours is not None and self.retain_hours < 1:
            raise OptionError("retain_hours must be at least 1, because tasks write files that no version has yet")

    def after(self, batch: int, lakes: Iterable[Lake]) -> None:
        if self.compact_every and batch % self.compact_every == self.compact_every - 1:
            for lake in lakes:
                if lake.exists():
                    self._tidy(lake)

    def _tidy(self, lake: Lake) -> None:
        table = lake.open()
        table.optimize.compact()
        table.create_checkpoint()
        if self.retain_hours is not None:
            table.vacuum(self.retain_hours, dry_run=False, enforce_retention_duration=False, full=True)
            table.cleanup_metadata()
