"""The times that can be restored from a target, derived from the names of its files."""

from __future__ import annotations

import msgspec

from headwater.store.embedded.backup.contents import chain, read_contents, read_timelines
from headwater.store.embedded.backup.failures import MissingError
from headwater.store.embedded.backup.targets import BackupTarget, check_claimed


class RestorableSpan(msgspec.Struct, frozen=True):
    """A range of times that can be restored, without a gap."""

    timeline: str
    from_ms: int
    to_ms: int
    bases: int
    parts: int
    journal_bytes: int
    problem: str  # why a part cannot be restored; empty if all of it can


def spans_of(target: BackupTarget) -> list[RestorableSpan]:
    """The spans of all timelines, newest last."""
    check_claimed(target)
    spans = []
    for timeline in read_timelines(target):
        contents = read_contents(target, timeline)
        for range_ in timeline.ranges:
            bases, parts = contents.bases_in(range_), contents.parts_in(range_)
            if (first_ms := contents.first_ms(range_)) is None:
                continue
            problem = ""
            try:
                chain(parts, bases[0].sequence, range_.last, target.url)
            except MissingError as error:
                problem = str(error)
            size = sum(contents.part_bytes[part] for part in parts)
            spans.append(
                RestorableSpan(timeline.id, first_ms, range_.reached_ms, len(bases), len(parts), size, problem)
            )
    return spans
