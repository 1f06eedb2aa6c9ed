"""Durable data that is not in the index yet, in memory: states, paths, bytes and documents.

Each is kept until the last segment that changed it is folded.
"""

from __future__ import annotations

import asyncio

from headwater import limits
from headwater.log.events import Appended, Created, Deleted, StreamEvent
from headwater.log.state import Document, StreamState
from headwater.store.deadlines import Deadlines
from headwater.store.pieces import GrowingRun, SingleRecord
from headwater.store.sorted_keys import SortedKeys, page_of


class _Touched:
    """What one segment changed."""

    __slots__ = ("deleted", "documents", "streams")

    def __init__(self) -> None:
        self.streams: set[int] = set()
        self.deleted: list[tuple[int, str]] = []  # ids and paths
        self.documents: set[str] = set()


class Unfolded:
    def __init__(self) -> None:
        self.states: dict[int, StreamState] = {}
        self.paths: dict[str, int | None] = {}  # None: deleted, although the index may have it
        self.deleted: set[int] = set()
        self.runs: dict[int, tuple[tuple[int, GrowingRun | SingleRecord], ...]] = {}  # stream → segment and bytes
        self.documents: dict[str, Document | None] = {}  # None: deleted
        self._sorted_paths = SortedKeys[str]()
        self._sorted_keys = SortedKeys[str]()
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
            self._set_path(event.path, event.id)
            if event.data:
                # Not the time of the state, which may include later appends of the batch.
                self._grow(event.id, state.start, event.data, event.at_ms, segment)
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
            self.deadlines.watch(state)

    def add_document(self, key: str, document: Document | None, segment: int) -> None:
        self.documents[key] = document
        self._sorted_keys.add(key)
        self._last_document[key] = segment
        self._touch(segment).documents.add(key)

    def _set_path(self, path: str, stream_id: int | None) -> None:
        self.paths[path] = stream_id
        self._sorted_paths.add(path)

    def _drop_path(self, path: str) -> None:
        del self.paths[path]
        self._sorted_paths.discard(path)

    def paths_after(self, prefix: str, after: str, limit: int) -> list[str]:
        """Up to `limit` paths in order, also of deleted streams."""
        return page_of(self._sorted_paths, prefix, after, limit)

    def keys_after(self, prefix: str, after: str, limit: int) -> list[str]:
        """Up to `limit` keys of documents in order, also of deleted ones."""
        return page_of(self._sorted_keys, prefix, after, limit)

    def _touch(self, segment: int) -> _Touched:
        touched = self._segments.get(segment)
        if touched is None:
            touched = self._segments[segment] = _Touched()
        return touched

    def _grow(self, stream_id: int, position: int, data: bytes, at_ms: int, segment: int) -> None:
        """Small records are joined. The runs are a tuple, because there are many streams: a deque takes 600 bytes more,
        and the garbage collector looks at a list in each of its passes."""
        runs = self.runs.get(stream_id)
        if runs is None:
            self.runs[stream_id] = ((segment, SingleRecord(position, data, at_ms)),)
            return
        newest, run = runs[-1]
        if newest == segment and len(data) <= limits.LARGE_RECORD_BYTES:
            if isinstance(run, GrowingRun):
                run.append(data, at_ms)
                return
            if run.end - run.start <= limits.LARGE_RECORD_BYTES:
                self.runs[stream_id] = (*runs[:-1], (segment, run.grown(data, at_ms)))
                return
        self.runs[stream_id] = (*runs, (segment, SingleRecord(position, data, at_ms)))

    def _delete(self, state: StreamState, segment: int) -> None:
        self.deleted.add(state.id)
        self.states.pop(state.id, None)
        self.runs.pop(state.id, None)
        self.deadlines.forget(state.id)
        if self.paths.get(state.path, state.id) == state.id:
            self._set_path(state.path, None)
        self._touch(segment).deleted.append((state.id, state.path))

    async def forget(self, segment: int) -> None:
        """Drop what a folded segment changed and no later one did, in small steps."""
        touched = self._segments.pop(segment, None)
        if touched is None:
            return
        self.forgotten += 1
        while touched.streams or touched.deleted or touched.documents:
            self._forget_some(touched, segment)
            await asyncio.sleep(0)

    def _forget_some(self, touched: _Touched, segment: int) -> None:
        """Each step also frees what it has dropped, because freeing everything at the end would take long."""
        for _ in range(limits.YIELD_EVERY_STREAMS):
            if touched.streams:
                self._forget_stream(touched.streams.pop(), segment)
            elif touched.deleted:
                stream_id, path = touched.deleted.pop()
                self.deleted.discard(stream_id)
                if path in self.paths and self.paths[path] is None:
                    self._drop_path(path)
            elif touched.documents:
                self._forget_document(touched.documents.pop(), segment)

    def _forget_document(self, key: str, segment: int) -> None:
        if self._last_document.get(key) == segment:
            del self._last_document[key], self.documents[key]
            self._sorted_keys.discard(key)

    def _forget_stream(self, stream_id: int, segment: int) -> None:
        runs = self.runs.get(stream_id)
        if runs is not None:
            self.runs[stream_id] = left = tuple([run for run in runs if run[0] != segment])
            if not left:
                del self.runs[stream_id]
        if self._last.get(stream_id) == segment:
            del self._last[stream_id]
            self.deadlines.forget(stream_id)
            state = self.states.pop(stream_id, None)
            if state is not None and self.paths.get(state.path) == stream_id:
                self._drop_path(state.path)

    def changes_of(self, segment: int) -> int:
        """How many streams and documents a segment changed."""
        touched = self._segments.get(segment)
        return 0 if touched is None else len(touched.streams) + len(touched.deleted) + len(touched.documents)

    def runs_from(self, stream_id: int, start: int) -> list[GrowingRun | SingleRecord]:
        return [run for _, run in self.runs.get(stream_id, ()) if run.end > start]
