"""Replay: applies the events of the journal to the states of the index, for recovery, the fold and `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from headwater.log.events import DOCUMENT_EVENTS, Created, Event
from headwater.log.state import Document, StreamState, evolve, evolve_document
from headwater.store.embedded.journal import CorruptJournalError, JournalBatch, Segment


class Folded(Protocol):
    """The states of the index."""

    def by_id(self, stream_id: int) -> StreamState | None: ...

    def document(self, key: str) -> Document | None: ...


class Replayed(NamedTuple):
    segment: int
    event: Event
    state: StreamState | None  # of the stream after the event, or before its deletion; None for documents


class Replay:
    """The states after replaying segments. `sequence` is that of the last batch."""

    def __init__(self, folded: Folded, sequence: int, next_id: int, streams: int) -> None:
        self._folded = folded
        self.states: dict[int, StreamState | None] = {}  # None: deleted
        self.documents: dict[str, Document | None] = {}  # None: deleted
        self.sequence = sequence
        self.next_id = next_id
        self.streams = streams  # number of streams
        self.batches = 0

    def run(self, segments: Iterable[Segment]) -> Iterator[Replayed]:
        for segment in segments:
            for batch in segment.batches:
                yield from self._run_batch(batch, segment.number)

    def _run_batch(self, batch: JournalBatch, number: int) -> Iterator[Replayed]:
        for record in batch.records():
            for event in record:
                try:
                    state = self._apply(event)
                except ValueError as error:
                    raise CorruptJournalError(batch.file, batch.position, str(error)) from error
                yield Replayed(number, event, state)
        self.sequence = batch.sequence
        self.batches += 1

    def _apply(self, event: Event) -> StreamState | None:
        if isinstance(event, DOCUMENT_EVENTS):
            self.documents[event.key] = evolve_document(self.document(event.key), event)
            return None
        if isinstance(event, Created):
            self.next_id = max(self.next_id, event.id + 1)
            self.streams += 1
            before = None
        else:
            before = self.state(event.id)
        after = self.states[event.id] = evolve(before, event)
        if after is None:
            self.streams -= 1
        return after or before

    def state(self, stream_id: int) -> StreamState | None:
        """The current state of a stream."""
        if stream_id in self.states:
            return self.states[stream_id]
        return self._folded.by_id(stream_id)

    def document(self, key: str) -> Document | None:
        return self.documents[key] if key in self.documents else self._folded.document(key)
