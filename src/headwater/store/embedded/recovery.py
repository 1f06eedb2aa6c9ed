"""Recovery: the journal replayed over the index, and its last segment sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater.log.events import DOCUMENT_EVENTS
from headwater.store.embedded.disk import Disk
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.journal import Segment, read_segments, segment_name, segment_numbers
from headwater.store.embedded.journal_writer import seal_tail
from headwater.store.embedded.replay import Replay
from headwater.store.embedded.unfolded import Unfolded


class Recovered(NamedTuple):
    unfolded: Unfolded
    sealed: list[int]  # segments that are still to be folded
    next_segment: int
    next_sequence: int
    next_id: int


def recover(disk: Disk, index: IndexReader, salt: Callable[[], int]) -> Recovered:
    meta = index.meta()
    unfolded = Unfolded()
    replay = Replay(index, meta.folded_sequence, meta.next_id)
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
    if last is not None and not last.sealed:
        seal_tail(disk, last, replay.sequence + 1, salt)
    newest = meta.folded_segment if last is None else last.number
    for number in segment_numbers(disk):
        if not meta.folded_segment < number <= newest:
            disk.remove(segment_name(number))  # folded already, or never begun
    _sync(disk, range(meta.folded_segment + 1, newest + 1))
    sealed = list(range(meta.folded_segment + 1, newest + 1))
    return Recovered(unfolded, sealed, newest + 1, replay.sequence + 1, replay.next_id)


def _sync(disk: Disk, numbers: range) -> None:
    """What was found may be in the page cache only. Nothing is built on it before it is on the disk."""
    for number in numbers:
        file = disk.open(segment_name(number))
        try:
            file.sync()
        finally:
            file.close()
    disk.sync_names()
