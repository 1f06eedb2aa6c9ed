"""Journals for tests: a writer of a new journal, and moments of its batches."""

from __future__ import annotations

from collections.abc import Callable

from headwater.log.moments import Moment
from headwater.store.embedded import newest
from headwater.store.embedded.disk import Disk
from headwater.store.embedded.journal_writer import JournalWriter
from headwater.store.embedded.newest import FoldedSegment

NEW = FoldedSegment(0, 0, 0)


def new_journal(disk: Disk, *, segment_bytes: int, salt: Callable[[], int]) -> JournalWriter:
    """The writer of a journal that has no segment yet."""
    newest.create(disk, NEW)
    record = newest.open_record(disk, newest.read(disk))
    return JournalWriter(disk, record, number=1, sequence=1, segment_bytes=segment_bytes, salt=salt)


def at(ms: int) -> Moment:
    """A moment at which all clocks show the same time."""
    return Moment(ms, ms, ms, 1)
