"""Durable data that is not in the index yet, in memory: states, paths, bytes and documents.

Each is kept until the last segment that changed it is folded.
"""

from __future__ import annotations

import asyncio
from collections import deque

from headwater import limits
from headwater.log.events import Appended, Created, Deleted, StreamEvent
from headwater.log.state import Document, StreamState
from headwater.store.deadlines import Deadlines
from headwater.store.pieces import GrowingRun, LargeRecord


class _Touched:
    """What one segment changed."""

    __slots__ = ("deleted", "documents", "streams")

    def __init__(self) -> None:
        self.streams: set[int] = set()
        self.deleted: list[StreamState] = []
        self.documents: set[str] = set()


class Unfolded:
    def __init__(self) -> None:
        self.states: dict[int, StreamState] = {}
        self.paths: dict[str, int | None] = {}  # None: deleted, although the index may have it
        self.deleted: set[int] = set()
        self.runs: dict[int, deque[tuple[int, GrowingRun | LargeRecord]]] = {}  # stream → segment and bytes
        self.documents: dict[str, Document | None] = {}  # None: deleted
        self._segments: dict[int, _Touched] = {}
        self._last: dict[int, int] = {}  # stream → the last segment that changed it
        self._last_document: dict[str, int] = {}
        self.deadlines = Deadlines(self.states)
        self.forgotten = 0  # number of segments that were dropped

    @property
    def empty(self) -> bool:
        return not self._segments

    def add(self, event: StreamEvent, state: StreamState, at_ms: int, segment: int) -> None:
        """Add a durable event and the state of the stream after it, or before its deletion. `at_ms` is the time of the
        record. The state is kept without a copy."""
        if isinstance(event, Appended):
            self.append(event, state, at_ms, segment)
            return
        self._keep(event.id, state, segment)
        if isinstance(event, Created):
            self.paths[event.path] = event.id
            if event.data:
                # Not the time of the state, which may include later appends of the batch.
                self._grow(event.id, state.start, event.data, event.at_ms, segment)
            self.deadlines.watch(state)
        elif isinstance(event, Deleted):
            self._delete(state, segment)

    def append(self, event: Appended, state: StreamState, at_ms: int, segment: int) -> None:
        stream_id = event.id
        self.states[stream_id] = state
        if self._last.get(stream_id) != segment:
            self._keep(stream_id, state, segment)
        if event.data:
            self._grow(stream_id, event.position, event.data, at_ms, segment)

    def add_bytes(self, event: StreamEvent, segment: int) -> None:
        """Add an event of a stream whose state in the index is damaged: only its bytes, which forks may read."""
        if isinstance(event, Deleted):
            self.deleted.add(event.id)
        elif isinstance(event, Appended) and event.data:
            self._touch(segment).streams.add(event.id)
            self._grow(event.id, event.position, event.data, event.at_ms, segment)

    def _keep(self, stream_id: int, state: StreamState, segment: int) -> None:
        self.states[stream_id] = state
        if self._last.get(stream_id) != segment:
            self._last[stream_id] = segment
            self._touch(segment).streams.add(stream_id)

    def add_document(self, key: str, document: Document | None, segment: int) -> None:
        self.documents[key] = document
        self._last_document[key] = segment
        self._touch(segment).documents.add(key)

    def _touch(self, segment: int) -> _Touched:
        touched = self._segments.get(segment)
        if touched is None:
            touched = self._segments[segment] = _Touched()
        return touched

    def _grow(self, stream_id: int, position: int, data: bytes, at_ms: int, segment: int) -> None:
        runs = self.runs.get(stream_id)
        if runs is None:
            runs = self.runs[stream_id] = deque()
        if len(data) > limits.LARGE_RECORD_BYTES:
            runs.append((segment, LargeRecord(position, data, at_ms)))
            return
        if runs:
            newest, run = runs[-1]
            if newest == segment and type(run) is GrowingRun:
                run.append(data, at_ms)
                return
        run = GrowingRun(position)
        run.append(data, at_ms)
        runs.append((segment, run))

    def _delete(self, state: StreamState, segment: int) -> None:
        self.deleted.add(state.id)
        self.states.pop(state.id, None)
        self.runs.pop(state.id, None)
        if self.paths.get(state.path, state.id) == state.id:
            self.paths[state.path] = None
        self._touch(segment).deleted.append(state)

    async def forget(self, segment: int) -> None:
        """Drop what a folded segment changed and no later one did, in small steps."""
        touched = self._segments.pop(segment, None)
        if touched is None:
            return
        self.forgotten += 1
        for count, stream_id in enumerate(touched.streams):
            if count % limits.YIELD_EVERY_STREAMS == limits.YIELD_EVERY_STREAMS - 1:
                await asyncio.sleep(0)
            self._forget_stream(stream_id, segment)
        for state in touched.deleted:
            self.deleted.discard(state.id)
            if state.path in self.paths and self.paths[state.path] is None:
                del self.paths[state.path]
        for key in touched.documents:
            if self._last_document.get(key) == segment:
                del self._last_document[key], self.documents[key]

    def _forget_stream(self, stream_id: int, segment: int) -> None:
        runs = self.runs.get(stream_id)
        if runs is not None:
            while runs and runs[0][0] == segment:
                runs.popleft()
            if not runs:
                del self.runs[stream_id]
        if self._last.get(stream_id) == segment:
            del self._last[stream_id]
            state = self.states.pop(stream_id, None)
            if state is not None and self.paths.get(state.path) == stream_id:
                del self.paths[state.path]

    def runs_from(self, stream_id: int, start: int) -> list[GrowingRun | LargeRecord]:
        return [run for _, run in self.runs.get(stream_id, ()) if run.end > start]
