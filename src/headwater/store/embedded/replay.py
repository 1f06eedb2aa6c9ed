"""Replay: applies the events of the journal to the states of the index, for recovery, the fold and `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from headwater.errors import DamagedDataError
from headwater.log.events import DOCUMENT_EVENTS, Created, Deleted, DocumentDeleted, Event, TimelineBegun
from headwater.log.state import Document, StreamState, evolve, evolve_document
from headwater.store.embedded.index import Meta
from headwater.store.embedded.journal import CorruptJournalError, JournalBatch, Segment


class IndexedStates(Protocol):
    """The states of the index."""

    def by_id(self, stream_id: int) -> StreamState | None: ...

    def document(self, key: str) -> Document | None: ...


class Replayed(NamedTuple):
    segment: int
    event: Event
    state: StreamState | None  # after the event, or before a deletion; None for documents and damaged streams


class Replay:
    """The states after replaying segments. `sequence` is that of the last batch, `latest` its moment.

    A stream or document whose row in the index is damaged has no state. Its events are skipped until it is deleted.
    """

    def __init__(self, folded: IndexedStates, meta: Meta) -> None:
        self._folded = folded
        self.states: dict[int, StreamState | None] = {}  # None: deleted
        self.documents: dict[str, Document | None] = {}  # None: deleted
        self.damaged: dict[int | str, DamagedDataError] = {}  # by the id of a stream or the key of a document
        self.sequence = meta.folded_sequence
        self.latest = meta.latest
        self.next_id = meta.next_id
        self.streams = meta.streams  # number of streams
        self.timeline = meta.timeline  # a restored index may be of a time before it began
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
                except DamagedDataError as error:
                    state = None
                    self._skip(event, error)
                yield Replayed(number, event, state)
        self.sequence, self.latest = batch.sequence, batch.moment
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
        if isinstance(event, TimelineBegun):
            self.timeline = max(self.timeline, event.timeline)
        after = self.states[event.id] = evolve(before, event)
        if after is None:
            self.streams -= 1
        return after or before

    def _skip(self, event: Event, error: DamagedDataError) -> None:
        """Note the damage. A deletion removes it."""
        key = event.key if isinstance(event, DOCUMENT_EVENTS) else event.id
        self.damaged[key] = error
        if isinstance(event, DocumentDeleted):
            self.documents[event.key] = None
        elif isinstance(event, Deleted):
            self.states[event.id] = None
            self.streams -= 1

    def state(self, stream_id: int) -> StreamState | None:
        """The current state of a stream."""
        if stream_id in self.states:
            return self.states[stream_id]
        return self._folded.by_id(stream_id)

    def document(self, key: str) -> Document | None:
        return self.documents[key] if key in self.documents else self._folded.document(key)
