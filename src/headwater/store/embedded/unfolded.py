"""Durable data that is not in the index yet, in memory: states, paths, bytes and documents.

Each is kept until the last segment that changed it is folded.

There may be hundreds of thousands of streams here, and the garbage collector looks at all of its objects in one turn of
the event loop. So it does not look at these: what is kept for each stream is a number, a string or a structure with
`gc=False`, in a dictionary. Python does not track a dictionary of such values, but it tracks every set and list.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import msgspec

from headwater import limits
from headwater.log.events import Appended, Created, Deleted, StreamEvent, Trimmed
from headwater.log.state import Document, StreamState
from headwater.store.deadlines import Deadlines
from headwater.store.pieces import GrowingRun, SingleRecord
from headwater.store.sorted_keys import SortedKeys, page_of

Bytes: TypeAlias = GrowingRun | SingleRecord


class _Run(msgspec.Struct, eq=False, gc=False):
    """Bytes of a stream that one segment added."""

    segment: int
    run: Bytes


class _Runs(_Run, eq=False, gc=False):
    """All unfolded bytes of a stream: the newest run, and the runs before it, of which most streams have none."""

    older: tuple[_Run, ...] = ()  # oldest first

    def begin(self, segment: int, run: Bytes) -> None:
        """Make a run the newest one."""
        self.older = (*self.older, _Run(self.segment, self.run))
        self.segment, self.run = segment, run


class _Touched:
    """What one segment changed. The dictionaries are used as sets."""

    __slots__ = ("deleted", "documents", "streams", "trims")

    def __init__(self) -> None:
        self.streams: dict[int, None] = {}
        self.deleted: dict[int, str] = {}  # ids and paths
        self.documents: dict[str, None] = {}
        self.trims = False  # whether it trimmed a stream


class Unfolded:
    def __init__(self) -> None:
        self.states: dict[int, StreamState] = {}
        self.paths: dict[str, int | None] = {}  # None: deleted, although the index may have it
        self.deleted: dict[int, None] = {}  # used as a set
        self._runs: dict[int, _Runs] = {}
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
        elif isinstance(event, Trimmed):
            self._touch(segment).trims = True

    def append(self, event: Appended, state: StreamState, at_ms: int, segment: int) -> None:
        stream_id, data = event.id, event.data
        runs = self._runs.get(stream_id)
        if runs is None or runs.segment != segment:
            self._keep(stream_id, state, segment)
        else:  # the segment has bytes of the stream already
            self.states[stream_id] = state
            if state.retention is not None:
                self.deadlines.watch(state)
            run = runs.run
            if type(run) is GrowingRun and 0 < len(data) <= limits.LARGE_RECORD_BYTES:  # the usual case
                run.append(data, at_ms)
                return
        if data:
            self._grow(stream_id, event.position, data, at_ms, segment)

    def add_bytes(self, event: StreamEvent, segment: int) -> None:
        """Add an event of a stream whose state in the index is damaged: only its bytes, which forks may read."""
        if isinstance(event, Deleted):
            self.deleted[event.id] = None
        elif isinstance(event, Appended) and event.data:
            self._touch(segment).streams[event.id] = None
            self._grow(event.id, event.position, event.data, event.at_ms, segment)

    def _keep(self, stream_id: int, state: StreamState, segment: int) -> None:
        self.states[stream_id] = state
        if self._last.get(stream_id) != segment:
            self._last[stream_id] = segment
            self._touch(segment).streams[stream_id] = None
        self.deadlines.watch(state)

    def add_document(self, key: str, document: Document | None, segment: int) -> None:
        self.documents[key] = document
        self._sorted_keys.add(key)
        self._last_document[key] = segment
        self._touch(segment).documents[key] = None

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
        """Small records are joined."""
        runs = self._runs.get(stream_id)
        if runs is None:
            self._runs[stream_id] = _Runs(segment, SingleRecord(position, data, at_ms))
            return
        run = runs.run
        if runs.segment == segment and len(data) <= limits.LARGE_RECORD_BYTES:
            if isinstance(run, GrowingRun):
                run.append(data, at_ms)
                return
            if len(run.data) <= limits.LARGE_RECORD_BYTES:
                runs.run = run.grown(data, at_ms)
                return
        runs.begin(segment, SingleRecord(position, data, at_ms))

    def _delete(self, state: StreamState, segment: int) -> None:
        self.deleted[state.id] = None
        self.states.pop(state.id, None)
        self._runs.pop(state.id, None)
        self.deadlines.forget(state.id)
        if self.paths.get(state.path, state.id) == state.id:
            self._set_path(state.path, None)
        self._touch(segment).deleted[state.id] = state.path

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
                self._forget_stream(touched.streams.popitem()[0], segment)
            elif touched.deleted:
                stream_id, path = touched.deleted.popitem()
                self.deleted.pop(stream_id, None)
                if path in self.paths and self.paths[path] is None:
                    self._drop_path(path)
            elif touched.documents:
                self._forget_document(touched.documents.popitem()[0], segment)

    def _forget_document(self, key: str, segment: int) -> None:
        if self._last_document.get(key) == segment:
            del self._last_document[key], self.documents[key]
            self._sorted_keys.discard(key)

    def _forget_stream(self, stream_id: int, segment: int) -> None:
        runs = self._runs.get(stream_id)
        if runs is not None:
            if runs.segment == segment:  # segments are folded in order, so there is no older run
                del self._runs[stream_id]
            else:
                runs.older = tuple([run for run in runs.older if run.segment != segment])
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

    def has_deletions(self, segment: int) -> bool:
        """Whether a segment deleted or trimmed streams."""
        touched = self._segments.get(segment)
        return touched is not None and (bool(touched.deleted) or touched.trims)

    def runs_from(self, stream_id: int, start: int) -> list[Bytes]:
        """The runs of a stream that end after a position, oldest first."""
        runs = self._runs.get(stream_id)
        if runs is None:
            return []
        return [run.run for run in (*runs.older, runs) if run.run.end > start]
