"""Which streams may have expired: a heap of deadlines that are looked at again when they come up."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from headwater.log.state import StreamState


class Deadlines:
    """Over states that others keep: renewed ones are found out when their old deadline passes."""

    def __init__(self, states: Mapping[int, StreamState]) -> None:
        self._states = states
        self._heap: list[tuple[int, int]] = []  # deadline, id

    def watch(self, state: StreamState) -> None:
        if state.deadline_ms is None:
            return
        if len(self._heap) > 2 * len(self._states) + 1000:  # most of it is long gone
            self._heap = [entry for entry in self._heap if entry[1] in self._states]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (state.deadline_ms, state.id))

    def due(self, now_ms: int, limit: int) -> list[StreamState]:
        found: list[StreamState] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            _, stream_id = heapq.heappop(self._heap)
            state = self._states.get(stream_id)
            if state is None or state.soft_deleted or state.deadline_ms is None:
                continue
            heapq.heappush(self._heap, (max(state.deadline_ms, now_ms + 1), stream_id))
            if state.deadline_ms <= now_ms:
                found.append(state)
        return found
