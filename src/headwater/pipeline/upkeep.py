"""Maintenance of the tables of a job: merges small files, and deletes old files and the log entries about them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from deltalake import DeltaTable

from headwater import limits
from headwater.pipeline.lake import Lake
from headwater.pipeline.locations import local_path
from headwater.pipeline.syncing import sync_checkpoint

# How long Delta keeps the log, and notes of removed files in each checkpoint of the log: a month and a week by default.
# Both are read whenever a table is opened, and neither is of use for longer than the files are kept.
_RETENTIONS = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")


class TableUpkeep(msgspec.Struct, frozen=True):
    """Runs after every `compact_every` batches (0: never). Files and log are kept for `retain_hours` (None: ever)."""

    compact_every: int
    retain_hours: int | None  # at least 1, because tasks write files that no version has yet

    def after(self, batch: int, lakes: Iterable[Lake]) -> None:
        if self.compact_every and batch % self.compact_every == self.compact_every - 1:
            for lake in lakes:
                if lake.exists():
                    self._tidy(lake)

    def _tidy(self, lake: Lake) -> None:
        table = lake.open()
        with lake.syncing(table):
            if self.retain_hours is not None:
                _set_retention(table, self.retain_hours)
            table.optimize.compact()
        table.create_checkpoint()
        if (directory := local_path(lake.uri)) is not None:
            sync_checkpoint(directory, table.version())  # before the entries that it replaces are deleted
        if self.retain_hours is not None:
            table.vacuum(None, dry_run=False, enforce_retention_duration=False, full=True)
            table.cleanup_metadata()


def _set_retention(table: DeltaTable, hours: int) -> None:
    """Set how long the table keeps old files and its log: properties of the table, by which delta-rs deletes."""
    interval = f"interval {round(hours * limits.PIPELINE_HOUR_S)} seconds"
    properties = table.metadata().configuration
    if any(properties.get(name) != interval for name in _RETENTIONS):
        table.alter.set_table_properties(dict.fromkeys(_RETENTIONS, interval))
        table.update_incremental()
