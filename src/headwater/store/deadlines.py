"""The deadlines of streams in order, to find those that may have expired or may have something to trim.

A renewal does not change the order at once, because streams are renewed far more often than they expire. It is noticed
when the old deadline has passed.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.log.state import StreamState
from headwater.store.sorted_keys import SortedKeys

Deadline = tuple[int, int]  # milliseconds since 1970, and the id of the stream
MAX_ID = 2**63 - 1  # sorts after the ids of all streams that have the same deadline


class Deadlines:
    """Uses the states of the caller, which must forget streams that it no longer has."""

    def __init__(self, states: Mapping[int, StreamState]) -> None:
        self._states = states
        self._order = SortedKeys[Deadline]()
        self._watched: dict[int, int] = {}  # id → its deadline in the order

    def watch(self, state: StreamState) -> None:
        """Watch a stream that has a deadline, unless it is watched already. The deadline of one with a retention may
        come closer."""
        watched_ms = self._watched.get(state.id)
        if watched_ms is not None and not state.may_trim:
            return
        deadline_ms = _deadline_ms(state)
        if deadline_ms is not None and (watched_ms is None or deadline_ms < watched_ms):
            self.forget(state.id)
            self._watched[state.id] = deadline_ms
            self._order.add((deadline_ms, state.id))

    def forget(self, stream_id: int) -> None:
        deadline_ms = self._watched.pop(stream_id, None)
        if deadline_ms is not None:
            self._order.discard((deadline_ms, stream_id))

    def refresh(self) -> None:
        """Move all renewed streams to their present deadlines."""
        for stream_id in list(self._watched):
            self._move(stream_id)

    def due(self, after: Deadline, now_ms: int, limit: int) -> tuple[list[Deadline], Deadline | None]:
        """Look at up to `limit` deadlines after one of them. Returns those that have passed, and the last one that was
        looked at if there may be more."""
        looked_at = self._order.past(after, limit)
        passed = [deadline for deadline in looked_at if deadline[0] <= now_ms]
        due = [deadline for deadline in passed if self._is_due(deadline[1], now_ms)]
        return due, passed[-1] if len(passed) == limit else None

    def _is_due(self, stream_id: int, now_ms: int) -> bool:
        """Whether the present deadline of a stream has passed. Each append to a stream that is too large moves it."""
        deadline_ms = self._move(stream_id)
        return deadline_ms is not None and deadline_ms <= now_ms

    def _move(self, stream_id: int) -> int | None:
        """Watch a stream at its present deadline, which is returned; None if it has none any more."""
        state = self._states.get(stream_id)
        deadline_ms = None if state is None else _deadline_ms(state)
        if deadline_ms != self._watched[stream_id]:
            self.forget(stream_id)
            if state is not None:
                self.watch(state)
        return deadline_ms


def _deadline_ms(state: StreamState) -> int | None:
    return None if state.soft_deleted else state.due_ms
