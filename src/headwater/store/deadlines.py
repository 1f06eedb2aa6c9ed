"""A heap of deadlines, to find streams that may have expired. A deadline is checked again when it has passed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from headwater.log.state import StreamState


class Deadlines:
    """Uses the states of the caller. A renewed stream is noticed when its old deadline passes."""

    def __init__(self, states: Mapping[int, StreamState]) -> None:
        self._states = states
        self._heap: list[tuple[int, int]] = []  # deadline, id

    def watch(self, state: StreamState) -> None:
        if state.deadline_ms is None:
            return
        if len(self._heap) > 2 * len(self._states) + 1000:  # most entries are outdated
            self._heap = [entry for entry in self._heap if entry[1] in self._states]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (state.deadline_ms, state.id))

    def due(self, since_ms: int, now_ms: int, limit: int) -> list[StreamState]:
        """Streams whose deadline is after `since_ms` and has passed. They stay in the heap."""
        found: list[StreamState] = []
        again: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            _, stream_id = heapq.heappop(self._heap)
            state = self._states.get(stream_id)
            deadline_ms = None if state is None or state.soft_deleted else state.deadline_ms
            if state is None or deadline_ms is None:
                continue
            again.append((deadline_ms, stream_id))
            if since_ms < deadline_ms <= now_ms:
                found.append(state)
        for entry in again:
            heapq.heappush(self._heap, entry)
        return found
