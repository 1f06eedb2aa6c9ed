"""The memory store: everything in this process, durable for as long as it lives."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from headwater.log.values import Appended, Created, Deleted, Event, StreamState
from headwater.store.contract import Commit, Done
from headwater.store.deadlines import Deadlines
from headwater.store.records import Run


class MemoryStore:
    def __init__(self) -> None:
        self.next_id = 1
        self.full: str | None = None
        self.failed: Callable[[BaseException], None] | None = None
        self._states: dict[int, StreamState] = {}
        self._ids: dict[str, int] = {}
        self._bytes: dict[int, Run] = {}
        self._deadlines = Deadlines(self._states)
        self._sorted: list[str] | None = None

    async def start(self) -> None:
        """There is nothing to do in the background."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        for commit in batch:
            for state in commit.states:
                self._states[state.id] = state
            for event in commit.record:
                self._apply(event)
        done(None)

    def _apply(self, event: Event) -> None:
        if isinstance(event, Appended):
            if event.data:
                self._bytes[event.id].append(event.data)
        elif isinstance(event, Created):
            self._create(event)
        elif isinstance(event, Deleted):
            self._delete(event.id)

    def _create(self, event: Created) -> None:
        state = self._states[event.id]
        self._bytes[event.id] = own = Run(state.start)
        if event.data:
            own.append(event.data)
        self._ids[event.path] = event.id
        self._sorted = None
        self._deadlines.watch(state)

    def _delete(self, stream_id: int) -> None:
        state = self._states.pop(stream_id)
        del self._bytes[stream_id]
        if self._ids.get(state.path) == stream_id:
            del self._ids[state.path]
            self._sorted = None

    async def load(self, path: str) -> StreamState | None:
        stream_id = self._ids.get(path)
        return None if stream_id is None else self._states[stream_id]

    async def load_id(self, stream_id: int) -> StreamState | None:
        return self._states.get(stream_id)

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        return self._bytes[stream_id].read(start, end, bytes_max)

    async def boundary(self, stream_id: int, position: int) -> int:
        return self._bytes[stream_id].boundary(position)

    async def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        if self._sorted is None:
            self._sorted = sorted(self._ids)
        paths = self._sorted
        first = max(bisect_left(paths, prefix), bisect_right(paths, after))
        page = []
        for path in paths[first : first + limit]:
            if not path.startswith(prefix):
                break
            page.append(self._states[self._ids[path]])
        return page

    async def due(self, now_ms: int, limit: int) -> list[str]:
        return [state.path for state in self._deadlines.due(now_ms, limit)]

    async def close(self) -> None:
        self._states.clear()
        self._ids.clear()
        self._bytes.clear()
