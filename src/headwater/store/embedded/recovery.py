"""Recovery: replays the journal over the index.

It needs no disk space, so that a server can start and serve reads while the disk is full. Therefore the last segment is
not sealed. It is continued, and an incomplete batch at its end is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from headwater.log.events import DOCUMENT_EVENTS
from headwater.log.moments import Moment
from headwater.store.embedded.disk import Disk, File
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.journal import Segment, segment_name, segment_numbers
from headwater.store.embedded.newest import Newest, NewestRecord, open_record, read, read_segments
from headwater.store.embedded.replay import Replay
from headwater.store.embedded.unfolded import Unfolded

log = logging.getLogger("headwater.store")


class Unsealed(NamedTuple):
    """The segment in which the journal continues."""

    file: File
    position: int
    salt: int


class Recovered(NamedTuple):
    unfolded: Unfolded
    sealed: list[int]  # segments to fold
    segment: int  # the newest segment, or the next one if it is sealed
    unsealed: Unsealed | None
    record: NewestRecord
    next_sequence: int
    next_id: int
    streams: int
    timeline: int
    latest: Moment  # of the last batch


def recover(disk: Disk, index: IndexReader) -> Recovered:
    meta = index.meta()
    unfolded = Unfolded()
    replay = Replay(index.rows, meta)
    last: Segment | None = None

    def segments() -> Iterator[Segment]:
        nonlocal last
        for segment in read_segments(disk, meta.folded):
            last = segment
            yield segment

    for number, event, state in replay.run(segments()):
        if isinstance(event, DOCUMENT_EVENTS):
            if event.key in replay.documents:
                unfolded.add_document(event.key, replay.documents[event.key], number)
        elif state is not None:
            unfolded.add(event, state, state.appended_ms, number)
        else:
            unfolded.add_bytes(event, number)
    for error in replay.damaged.values():
        log.error("%s; it is not served", error)
    unfolded.deadlines.refresh()
    # Everything is verified. Only now the directory is changed.
    newest = meta.folded.number if last is None else last.number
    for number in segment_numbers(disk):
        if not meta.folded.number < number <= newest:
            disk.remove(segment_name(number))  # already folded, or never begun
    _sync(disk, range(meta.folded.number + 1, newest))
    unsealed = None if last is None else _settle(disk, last, replay.sequence + 1)
    record = _settle_record(disk, last)
    disk.sync_names()
    segment = newest + 1 if unsealed is None else newest
    sealed = list(range(meta.folded.number + 1, segment))
    return Recovered(
        unfolded,
        sealed,
        segment,
        unsealed,
        record,
        replay.sequence + 1,
        replay.next_id,
        replay.streams,
        replay.timeline,
        replay.latest,
    )


def _settle_record(disk: Disk, last: Segment | None) -> NewestRecord:
    """Make both slots of the record durable: either may be in the page cache only, or torn."""
    recorded = read(disk)
    newest = recorded.newest
    if last is not None and last.number != newest.number:  # its record was torn
        newest = Newest(last.number, last.salt, last.batches[0].sequence if last.batches else newest.sequence)
    record = open_record(disk, recorded)
    try:
        for _ in range(2):
            record.write(newest)
    except BaseException:
        record.close()
        raise
    return record


def _sync(disk: Disk, numbers: range) -> None:
    """Sync the segments, because their data may only be in the page cache."""
    for number in numbers:
        file = disk.open(segment_name(number))
        try:
            file.sync()
        finally:
            file.close()


def _settle(disk: Disk, last: Segment, sequence: int) -> Unsealed | None:
    """Make the last segment durable. Returns it for continuation, unless it is sealed.

    Its bytes are rewritten in place. If an earlier sync failed, the page cache may have marked them as clean, and
    another sync would not write them.
    """
    file = disk.open(segment_name(last.number))
    try:
        file.write(0, last.encode(sequence))
        file.sync()
    except BaseException:
        file.close()
        raise
    if not last.sealed:
        return Unsealed(file, last.end, last.salt)
    file.close()
    return None
