"""Streams in dictionaries: a view for `decide` and the bytes of each stream, without an engine."""

from __future__ import annotations

import copy

from headwater.log.commands import Command, Reply
from headwater.log.deciding import decide
from headwater.log.events import Appended, Created, DocumentDeleted, DocumentWritten, Event
from headwater.log.state import Document, StreamState, evolve, evolve_document


class World:
    def __init__(self) -> None:
        self.states: dict[int, StreamState] = {}
        self.paths: dict[str, int] = {}
        self.records: dict[int, list[bytes]] = {}  # a stream's own records
        self.history: list[Event] = []
        self.documents: dict[str, Document] = {}
        self.next_id = 1
        self.timeline = 0
        self.producers_max = 10_000

    def at(self, path: str) -> StreamState | None:
        return self.states[self.paths[path]] if path in self.paths else None

    def get(self, stream_id: int) -> StreamState:
        return self.states[stream_id]

    def document(self, key: str) -> Document | None:
        return self.documents.get(key)

    def run(self, command: Command) -> Reply:
        decision = decide(self, command, 1_000_000, self.producers_max)
        for event in decision.events:
            self.apply(event)
        return decision.reply

    def apply(self, event: Event) -> None:
        self.history.append(event)
        if isinstance(event, DocumentWritten | DocumentDeleted):
            document = evolve_document(self.documents.pop(event.key, None), event)
            if document is not None:
                self.documents[event.key] = document
            return
        state = evolve(copy.deepcopy(self.states.get(event.id)), event)
        if state is None:
            gone = self.states.pop(event.id)
            del self.records[event.id]
            if self.paths.get(gone.path) == event.id:
                del self.paths[gone.path]
            return
        self.states[event.id] = state
        if isinstance(event, Created):
            self.paths[event.path] = event.id
            self.records[event.id] = [event.data] if event.data else []
        elif isinstance(event, Appended) and event.data:
            self.records[event.id].append(event.data)

    def bytes_of(self, state: StreamState) -> bytes:
        """All bytes of the stream, inherited bytes first."""
        whole = b""
        for span in state.lineage:
            ancestor = self.states[span.id]
            own = b"".join(self.records[span.id])
            whole += own[span.start - ancestor.start : span.end - ancestor.start]
        return whole + b"".join(self.records[state.id])

    def record_at(self, state: StreamState, position: int) -> bytes:
        """The record that starts at a position, also if an ancestor stores it; empty at the tail."""
        for span in state.lineage:
            if span.start <= position < span.end:
                return self._own_record(span.id, position)[: span.end - position]
        return self._own_record(state.id, position)

    def _own_record(self, stream_id: int, position: int) -> bytes:
        at = self.states[stream_id].start
        for record in self.records[stream_id]:
            if at == position:
                return record
            at += len(record)
        return b""
