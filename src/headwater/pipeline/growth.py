"""What the batches of a job leave on disk, estimated from the first batches of a run.

A batch replaces files, and the old ones are kept for readers of older versions. So a table takes much more than its
rows: what a batch writes, times the batches in the time for which files are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from headwater import limits

log = logging.getLogger(__name__)
_DAY_S = 24 * 3600
_UNITS = (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000))


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a table, and what a batch adds to them."""

    table_files: int
    table_bytes: int
    buckets: int
    batch_files: float
    batch_bytes: float
    every_s: float
    retain_hours: int | None  # None: for ever

    @property
    def day_files(self) -> float:
        return self.batch_files * _DAY_S / self.every_s

    @property
    def day_bytes(self) -> float:
        return self.batch_bytes * _DAY_S / self.every_s

    def warnings(self, table: str) -> list[str]:
        return [
            warning for warning in (self._of_old_files(table), self._of_large_buckets(table)) if warning is not None
        ]

    def _of_old_files(self, table: str) -> str | None:
        days = 7 if self.retain_hours is None else self.retain_hours / 24  # without an end, the first week
        files, size = self.day_files * days, self.day_bytes * days
        if files <= limits.PIPELINE_GROWTH_FILES and size <= limits.PIPELINE_GROWTH_BYTES:
            return None
        how_long = "after a week, and never deletes them" if self.retain_hours is None else f"for {self.retain_hours} h"
        return (
            f"{table} has {shown(self.table_bytes)} in {self.table_files} files, and a batch every {self.every_s:g} s "
            f"writes {shown(self.batch_bytes)} in {self.batch_files:.0f} files: {shown(self.day_bytes)} in "
            f"{self.day_files:,.0f} files a day. It keeps about {shown(size)} in {files:,.0f} files {how_long}. Set a "
            "larger every_s, fewer retain_hours or, for a new table, fewer buckets"
        )

    def _of_large_buckets(self, table: str) -> str | None:
        size = self.table_bytes / self.buckets
        if size <= limits.PIPELINE_BUCKET_BYTES_MAX:
            return None
        return (
            f"{table} has {shown(self.table_bytes)} in {self.buckets} buckets, {shown(size)} in each, which a task "
            "holds in memory; materialize into a new table with more buckets"
        )


class GrowthWatch:
    """Observes the first batches of a run that change files, and logs warnings about the growth of the table."""

    def __init__(self, table: str, *, buckets: int, every_s: float, retain_hours: int | None) -> None:
        self._table = table
        self._buckets = buckets
        self._every_s = every_s
        self._retain_hours = retain_hours
        self._before: Mapping[str, int] | None = None
        self._written: list[tuple[int, int]] = []  # files and bytes of each batch
        self.is_done = False

    def note(self, files: Mapping[str, int]) -> None:
        """The files of the table after a batch, with their sizes."""
        if self.is_done:
            return
        if self._before is not None and files.keys() != self._before.keys():
            added = [size for path, size in files.items() if path not in self._before]
            self._written.append((len(added), sum(added)))
        self._before = files
        if len(self._written) >= limits.PIPELINE_GROWTH_BATCHES:
            self.is_done, self._before = True, None
            for warning in self._growth(files).warnings(self._table):
                log.warning("%s", warning)

    def _growth(self, files: Mapping[str, int]) -> Growth:
        count = len(self._written)
        return Growth(
            table_files=len(files),
            table_bytes=sum(files.values()),
            buckets=self._buckets,
            batch_files=sum(files for files, _ in self._written) / count,
            batch_bytes=sum(size for _, size in self._written) / count,
            every_s=self._every_s,
            retain_hours=self._retain_hours,
        )


def shown(size: float) -> str:
    """A number of bytes for people."""
    unit, factor = next((pair for pair in _UNITS if size >= pair[1]), ("bytes", 1))
    return f"{size / factor:.3g} {unit}" if size < 100 * factor else f"{size / factor:,.0f} {unit}"
