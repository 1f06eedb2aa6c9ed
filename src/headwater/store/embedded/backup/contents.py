"""The contents of a target for each timeline, derived from the names of its files."""

from __future__ import annotations

from typing import NamedTuple

from headwater.store.embedded.backup.failures import MissingError
from headwater.store.embedded.backup.formats import (
    TIMELINES,
    BackupRange,
    BackupTimeline,
    Base,
    BaseName,
    PartName,
    decode,
    parse_base,
    parse_part,
)
from headwater.store.embedded.backup.targets import BackupTarget


class Contents(NamedTuple):
    """A timeline with its bases and parts, in order."""

    timeline: BackupTimeline
    bases: list[BaseName]
    parts: list[PartName]
    part_bytes: dict[PartName, int]

    def bases_in(self, range_: BackupRange) -> list[BaseName]:
        end = self._end_of(range_)
        return [base for base in self.bases if range_.start <= base.sequence and (end is None or base.sequence < end)]

    def parts_in(self, range_: BackupRange) -> list[PartName]:
        end = self._end_of(range_)
        return [part for part in self.parts if part.last > range_.start and (end is None or part.first <= end)]

    def _end_of(self, range_: BackupRange) -> int | None:
        """The start of the next range."""
        return min((later.start for later in self.timeline.ranges if later.start > range_.start), default=None)

    @property
    def is_restorable(self) -> bool:
        return any(self.first_ms(range_) is not None for range_ in self.timeline.ranges)

    def first_ms(self, range_: BackupRange) -> int | None:
        """The earliest time of a range that can be restored; None if the range has no complete base yet."""
        earliest = min((base.taken_ms for base in self.bases_in(range_)), default=None)
        return min(earliest, range_.reached_ms) if earliest is not None and range_.complete else None


def read_timelines(target: BackupTarget) -> list[BackupTimeline]:
    """All timelines, oldest first."""
    timelines = [decode(name, target.get(name), BackupTimeline) for name in target.sizes(TIMELINES)]
    return sorted(timelines, key=lambda timeline: timeline.started_ms)


def read_contents(target: BackupTarget, timeline: BackupTimeline, after: str = "") -> Contents:
    """The contents of a timeline, of the parts only those whose names are greater than `after`."""
    bases = [base for name in target.sizes(f"{timeline.id}/bases/") if (base := parse_base(name)) is not None]
    sizes = target.sizes(f"{timeline.id}/journal/", after)
    part_bytes = {part: size for name, size in sizes.items() if (part := parse_part(name)) is not None}
    return Contents(timeline, sorted(bases), sorted(part_bytes), part_bytes)


def read_base(target: BackupTarget, timeline_id: str, base: BaseName) -> Base:
    name = f"{timeline_id}/bases/{base}"
    return decode(name, target.get(name), Base)


def chain(parts: list[PartName], after: int, last: int | None, url: str) -> list[PartName]:
    """The fewest parts that continue from a batch without a gap. Raises MissingError if they end before `last`."""
    links: list[PartName] = []
    reached = after
    for part in sorted(parts, key=lambda part: (part.first, -part.last)):
        if part.last <= reached:
            continue
        if part.first > reached + 1:
            raise MissingError(url, f"batches {reached + 1} to {part.first - 1} of the journal")
        links.append(part)
        reached = part.last
    if last is not None and reached < last:
        raise MissingError(url, f"batches {reached + 1} to {last} of the journal")
    return links
