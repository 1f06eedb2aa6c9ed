"""The fold: a sealed segment of the journal becomes part of the index, in one transaction.

It is a function of the index and the segment alone, by the same `evolve` that served the requests; if it is cut
off anywhere, it runs again with the same result.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeAlias

from headwater.log.values import Appended, Created, Event, StreamState
from headwater.store.index import IndexReader, IndexWriter, Meta
from headwater.store.journal import CorruptJournalError, Segment

_WITH_DATA = (Created, Appended)

Evolve: TypeAlias = Callable[[StreamState | None, Event], StreamState | None]


class _Growth:
    """What a segment adds to one stream."""

    __slots__ = ("ends", "parts", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.parts: list[bytes] = []
        self.ends = array("I")
        self.size = 0

    def add(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)
        self.ends.append(self.size)


class Folding:
    def __init__(self, writer: IndexWriter, evolve: Evolve, next_id: int) -> None:
        self._writer = writer
        self._evolve = evolve
        self._states: dict[int, StreamState] = {}
        self._growth: dict[int, _Growth] = {}
        self._deleted: set[int] = set()
        self.next_id = next_id

    def apply(self, event: Event) -> None:
        before = None if isinstance(event, Created) else self._state(event.id)
        tail = 0 if before is None else before.tail
        state = self._evolve(before, event)
        if state is None:
            self._states.pop(event.id, None)
            self._growth.pop(event.id, None)
            self._deleted.add(event.id)
            return
        self._states[event.id] = state
        if isinstance(event, Created):
            self.next_id = max(self.next_id, event.id + 1)
            tail = state.start
        if isinstance(event, _WITH_DATA) and event.data:
            growth = self._growth.get(event.id)
            if growth is None:
                growth = self._growth[event.id] = _Growth(tail)
            growth.add(event.data)

    def _state(self, stream_id: int) -> StreamState:
        state = self._states.get(stream_id) or self._writer.state(stream_id)
        if state is None or stream_id in self._deleted:
            raise LookupError(f"an event for stream {stream_id}, which does not exist")
        return state

    def write(self) -> None:
        # Deletions first: a path may have been used again.
        self._writer.delete(self._deleted)
        self._writer.put_states(self._states.values())
        for stream_id, growth in self._growth.items():
            self._writer.put_bytes(stream_id, growth.start, growth.ends, b"".join(growth.parts))


def fold(reader: IndexReader, writer: IndexWriter, segment: Segment, evolve: Evolve) -> None:
    """Fold one segment, unless that was done before."""
    meta = reader.meta()
    if segment.number <= meta.folded_segment:
        return
    sequence = meta.folded_sequence
    writer.begin()
    try:
        folding = Folding(writer, evolve, meta.next_id)
        for batch in segment.batches:
            for record in batch.records():
                for event in record:
                    try:
                        folding.apply(event)
                    except (LookupError, ValueError) as error:
                        raise CorruptJournalError(batch.file, batch.position, str(error)) from error
            sequence = batch.sequence
        folding.write()
        writer.commit(Meta(segment.number, sequence, folding.next_id))
    except BaseException:
        writer.rollback()
        raise
