"""Recovery: replays the journal over the index.

It needs no disk space, so that a server can start and serve reads while the disk is full. Therefore the last segment is
not sealed. It is continued, and an incomplete batch at its end is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater.log.events import DOCUMENT_EVENTS
from headwater.store.embedded.disk import Disk, File
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.journal import FORMAT, Segment, read_segments, segment_name, segment_numbers
from headwater.store.embedded.journal_writer import seal_tail
from headwater.store.embedded.replay import Replay
from headwater.store.embedded.unfolded import Unfolded


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
    next_sequence: int
    next_id: int
    streams: int
    timeline: int


def recover(disk: Disk, index: IndexReader, salt: Callable[[], int]) -> Recovered:
    meta = index.meta()
    unfolded = Unfolded()
    replay = Replay(index, meta.folded_sequence, meta.next_id, meta.streams)
    last: Segment | None = None

    def segments() -> Iterator[Segment]:
        nonlocal last
        for segment in read_segments(disk, meta.folded_segment, meta.folded_sequence + 1):
            last = segment
            yield segment

    for number, event, state in replay.run(segments()):
        if isinstance(event, DOCUMENT_EVENTS):
            unfolded.add_document(event.key, replay.documents[event.key], number)
        elif state is not None:
            unfolded.add(event, state, state.appended_ms, number)
    newest = meta.folded_segment if last is None else last.number
    for number in segment_numbers(disk):
        if not meta.folded_segment < number <= newest:
            disk.remove(segment_name(number))  # already folded, or never begun
    _sync(disk, range(meta.folded_segment + 1, newest))
    unsealed = None if last is None else _settle(disk, last, replay.sequence + 1, salt)
    disk.sync_names()
    segment = newest + 1 if unsealed is None else newest
    sealed = list(range(meta.folded_segment + 1, segment))
    return Recovered(
        unfolded,
        sealed,
        segment,
        unsealed,
        replay.sequence + 1,
        replay.next_id,
        replay.streams,
        meta.timeline,
    )


def _sync(disk: Disk, numbers: range) -> None:
    """Sync the segments, because their data may only be in the page cache."""
    for number in numbers:
        file = disk.open(segment_name(number))
        try:
            file.sync()
        finally:
            file.close()


def _settle(disk: Disk, last: Segment, sequence: int, salt: Callable[[], int]) -> Unsealed | None:
    """Make the last segment durable. Returns it for continuation, unless it is sealed or has an older format.

    Its bytes are rewritten in place. If an earlier sync failed, the page cache may have marked them as clean, and
    another sync would not write them.
    """
    if last.format != FORMAT and not last.sealed:
        seal_tail(disk, last, sequence, salt)
        return None
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
