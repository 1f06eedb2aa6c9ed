"""The memory store: all data is in this process and is lost when it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.log.events import DOCUMENT_EVENTS, Appended, Created, DocumentEvent, StreamEvent
from headwater.log.moments import NEVER, Moment
from headwater.log.state import Document, StreamState, evolve, evolve_document, without_producers
from headwater.store.contract import Commit, Done, Due, StatePage, StoreReport
from headwater.store.deadlines import Deadlines
from headwater.store.pieces import (
    GrowingRun,
    Piece,
    RecordEnd,
    boundary_in,
    list_runs,
    position_at,
    read_runs,
)
from headwater.store.sorted_keys import SortedKeys, page_of


class MemoryStore:
    """A store in the memory of the process. Its data is lost when the process ends."""

    shared = False

    def __init__(self) -> None:
        self.next_id = 1
        self.timeline = 0
        self.latest = NEVER
        self.full: str | None = None
        self._states: dict[int, StreamState] = {}
        self._ids: dict[str, int] = {}
        self._runs: dict[int, GrowingRun] = {}
        self._documents: dict[str, Document] = {}
        self._deadlines = Deadlines(self._states)
        self._paths = SortedKeys[str]()
        self._keys = SortedKeys[str]()

    @property
    def streams(self) -> int:
        return len(self._states)

    async def start(self, failed: Callable[[BaseException], None], moment: Callable[[], Moment]) -> None:
        """There is no background work."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        for commit in batch:
            for event in commit.record:
                if type(event) is Appended:
                    self._append(event)
                elif isinstance(event, DOCUMENT_EVENTS):
                    self._apply_document(event)
                else:
                    self._apply(event)
        done(None)

    def _append(self, event: Appended) -> None:
        state = self._states[event.id]
        evolve(state, event)
        if event.data:
            self._runs[event.id].append(event.data, event.at_ms)
        if state.retention is not None:
            self._deadlines.watch(state)

    def _apply(self, event: StreamEvent) -> None:
        state = evolve(self._states.get(event.id), event)
        if state is None:
            self._delete(event.id)
        elif isinstance(event, Created):
            self._create(event, state)
        else:
            self._deadlines.watch(state)
            self._free(state)

    def _free(self, state: StreamState) -> None:
        """Free bytes that nobody can read, if they are at least half of those of the stream: the others are copied."""
        run = self._runs[state.id]
        for low, high in state.unread:
            if low <= run.start and high - run.start > (run.end - run.start) // 2:
                self._runs[state.id] = run.after(high)

    def _create(self, event: Created, state: StreamState) -> None:
        self.next_id = max(self.next_id, event.id + 1)
        self._states[event.id] = state
        self._runs[event.id] = own = GrowingRun(state.start)
        if event.data:
            own.append(event.data, state.appended_ms)
        self._ids[event.path] = event.id
        self._paths.add(event.path)
        self._deadlines.watch(state)

    def _delete(self, stream_id: int) -> None:
        state = self._states.pop(stream_id)
        self._deadlines.forget(stream_id)
        del self._runs[stream_id]
        if self._ids.get(state.path) == stream_id:
            del self._ids[state.path]
            self._paths.discard(state.path)

    def _apply_document(self, event: DocumentEvent) -> None:
        document = evolve_document(self._documents.get(event.key), event)
        if document is None:
            del self._documents[event.key]
            self._keys.discard(event.key)
        else:
            self._documents[event.key] = document
            self._keys.add(event.key)

    async def load(self, path: str) -> StreamState | None:
        stream_id = self._ids.get(path)
        return None if stream_id is None else self._states[stream_id].copy()

    async def load_id(self, stream_id: int) -> StreamState | None:
        state = self._states.get(stream_id)
        return None if state is None else state.copy()

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        return read_runs((self._run(stream_id, start),), start, end, bytes_max)

    def _run(self, stream_id: int, start: int) -> GrowingRun:
        run = self._runs[stream_id]
        if start < run.start:
            raise LookupError(f"stream {stream_id} was trimmed at {start}")
        return run

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        return list_runs((self._run(stream_id, start),), start, end, limit)

    async def boundary(self, stream_id: int, position: int) -> int:
        return boundary_in(self._runs[stream_id], position)

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        return position_at(self._runs[stream_id], start, at_ms)

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        paths = page_of(self._paths, prefix, after, limit)
        states = [without_producers(self._states[self._ids[path]]) for path in paths]
        return StatePage(states, paths[-1] if len(paths) == limit else None)

    async def due(self, after: tuple[int, int], now_ms: int, limit: int) -> Due:
        passed, next_after = self._deadlines.due(after, now_ms, limit)
        return Due([self._states[stream_id].path for _, stream_id in passed], next_after)

    async def document(self, key: str) -> Document | None:
        return self._documents.get(key)

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        return [self._documents[key] for key in page_of(self._keys, prefix, after, limit)]

    def report(self) -> StoreReport:
        return StoreReport()

    def relieve(self) -> None:
        """There is nothing that could be loaded again."""

    async def close(self) -> None:
        self._states.clear()
        self._ids.clear()
        self._runs.clear()
