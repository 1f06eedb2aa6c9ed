"""Merging of small consecutive parts, so that a year of backups is not millions of files."""

from __future__ import annotations

from headwater import limits
from headwater.store.embedded.backup.formats import Copied, PartName


class RecentParts:
    """The last parts and their batches, at most as many bytes as one part may have."""

    def __init__(self) -> None:
        self._parts: list[tuple[PartName, Copied]] = []
        self._bytes = 0

    def add(self, name: PartName, copied: Copied) -> tuple[list[PartName], Copied] | None:
        """Add a part. Returns the parts to replace and their merged content, if there are enough."""
        size = sum(len(batch.payload) for batch in copied.batches)
        if self._parts and not self._continues(name, size):
            self._parts, self._bytes = [], 0
        self._parts.append((name, copied))
        self._bytes += size
        if len(self._parts) < limits.BACKUP_PARTS_MERGED:
            return None
        batches = [batch for _, some in self._parts for batch in some.batches]
        merged = Copied(copied.segment, batches, self._parts[0][1].after)
        names = [known for known, _ in self._parts]
        self._parts, self._bytes = [], 0
        return names, merged

    def _continues(self, name: PartName, size: int) -> bool:
        last_name, _ = self._parts[-1]
        return name.first == last_name.last + 1 and self._bytes + size <= limits.BACKUP_PART_BYTES
