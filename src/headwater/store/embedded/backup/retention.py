"""What a target keeps: small consecutive parts are merged, so that a year of backups is not millions of files, and old
data that no restore to a time after the cutoff needs is removed.

Data is old if it is before the cutoff by the wall clock, which `restore --at` uses, and by the engine's time. A wall
clock that was ahead or behind for a while makes nothing old that is not.
"""

from __future__ import annotations

from headwater import limits
from headwater.store.embedded.backup.contents import Contents, read_base, read_contents, read_timelines
from headwater.store.embedded.backup.formats import TIMELINES, BackupTimeline, BaseName, Copied, PartName, encode
from headwater.store.embedded.backup.targets import BackupTarget


def prune(target: BackupTarget, current_id: str, cutoff_ms: int) -> int:
    """Remove files that no restore to a time at or after the cutoff needs. Returns their number."""
    removed = 0
    for timeline in read_timelines(target):
        ends_ms = [max(range_.reached_ms, range_.written_ms) for range_ in timeline.ranges]
        if timeline.id != current_id and all(end_ms < cutoff_ms for end_ms in ends_ms):
            removed += _drop(target, timeline)
        else:
            removed += _trim(target, read_contents(target, timeline), cutoff_ms)
    return removed


def _drop(target: BackupTarget, timeline: BackupTimeline) -> int:
    names = [f"{TIMELINES}{timeline.id}", *target.sizes(f"{timeline.id}/")]
    target.remove(names[:1])  # first, so that every listed timeline is complete
    target.remove(names[1:])
    return len(names)


def _trim(target: BackupTarget, contents: Contents, cutoff_ms: int) -> int:
    """Remove data before the newest base that is not after the cutoff, and blocks that no base uses."""
    timeline, prefix = contents.timeline, contents.timeline.id
    oldest = _last_before(target, contents, cutoff_ms)
    names: list[str] = []
    if oldest is not None:
        names += [f"{prefix}/bases/{base}" for base in contents.bases if base < oldest]
        names += [f"{prefix}/journal/{part}" for part in contents.parts if part.last <= oldest.sequence]
        later = [range_ for range_ in timeline.ranges if range_.start > oldest.sequence]
        own = [range_ for range_ in timeline.ranges if range_.start <= oldest.sequence][-1:]
        if len(later) + len(own) < len(timeline.ranges):
            timeline.ranges = own + later
            target.put(f"{TIMELINES}{prefix}", encode(timeline))
        target.remove(names)
    left = [base for base in contents.bases if oldest is None or base >= oldest]
    needed = {digest.hex() for base in left for digest in read_base(target, prefix, base).blocks}
    unused = [name for name in target.sizes(f"{prefix}/blocks/") if name.rpartition("/")[2] not in needed]
    target.remove(unused)
    return len(names) + len(unused)


def _last_before(target: BackupTarget, contents: Contents, cutoff_ms: int) -> BaseName | None:
    """The newest base that is not after the cutoff."""
    for base in reversed(contents.bases):
        if base.taken_ms <= cutoff_ms and read_base(target, contents.timeline.id, base).written_ms <= cutoff_ms:
            return base
    return None


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
