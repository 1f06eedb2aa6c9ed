"""The states of all streams that are kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headwater.engine import Engine
from headwater.engine.messages import VisibleStream
from headwater.errors import OverloadedError, StateTooLargeError
from headwater.limits import (
    STATE_EVICTED_SHARE,
    STATE_IDLE_S,
    STATES_PAST_KEPT_MAX,
    STATES_PAST_WAITING_MAX,
    Limits,
)
from headwater.server.keeping import KeptViews
from headwater.server.states.state import Builds, KeptState

T = TypeVar("T")


class MovedOnError(Exception):
    """The state is not at the wanted position any more."""


class States(KeptViews[KeptState]):
    """The states of streams: one of now for each stream, and a few at an offset."""

    def __init__(self) -> None:
        super().__init__(STATE_IDLE_S)
        self._builds = Builds()
        self.builds = 0
        self.hits = 0  # requests that were answered at once

    @property
    def size_bytes(self) -> int:
        return sum([state.size_bytes for state in self._views.values()])

    async def ask_now(
        self, engine: Engine, limits: Limits, stream: VisibleStream, question: Callable[[KeptState], T]
    ) -> T:
        """The answer to a question to the state of a stream that was just read, with everything before its tail."""
        return await self._ask(self._state(engine, limits, stream, None), stream.tail, question)

    async def ask_at(
        self,
        engine: Engine,
        limits: Limits,
        stream: VisibleStream,
        position: int,
        question: Callable[[KeptState], T],
    ) -> T:
        """The answer to a question to the state at a position, which is the end of a record.

        The state of now is used if it is there. Otherwise a state is built for the position, and kept for a while, for
        the next pages."""
        now = self._views.get((stream.id, None))
        if position == stream.tail or (now is not None and now.position == position and now.is_at(position)):

            def ask_exactly(state: KeptState) -> T:
                if state.position != position:
                    raise MovedOnError
                return question(state)

            try:
                return await self.ask_now(engine, limits, stream, ask_exactly)
            except MovedOnError:
                """There were appends meanwhile."""
        return await self._ask(self._state(engine, limits, stream, position), position, question)

    async def _ask(self, state: KeptState, position: int, question: Callable[[KeptState], T]) -> T:
        if not state.is_too_large:  # otherwise it is tried again later
            state.used_s = asyncio.get_running_loop().time()
        self.hits += state.is_at(position)
        return await state.ask(position, lambda: question(state))

    def _state(self, engine: Engine, limits: Limits, stream: VisibleStream, until: int | None) -> KeptState:
        state = self._views.get((stream.id, until))
        if state is not None and not state.is_whole(stream):  # what was trimmed since is not part of the state
            state.close(stream.names.trimmed(stream.first, state.base.position))
        if state is None or state.is_over:
            if until is not None:
                self._make_room_for_past()
            state = KeptState(engine, stream, until, self._builds, lambda folded: self._check(folded, limits))
            state.open()
            self._keep(state)
            self.builds += 1
        return state

    def _make_room_for_past(self) -> None:
        """States at offsets are few, because everybody can ask for any offset."""
        past = [state for state in self._views.values() if state.until is not None]
        idle = sorted([state for state in past if not state.is_busy], key=self._value)
        if len(past) - len(idle) >= STATES_PAST_WAITING_MAX:
            raise OverloadedError("many states at offsets or times are being read; try again")
        for state in idle[: max(0, len(idle) - STATES_PAST_KEPT_MAX + 1)]:
            self._drop(state)

    def _value(self, view: KeptState) -> tuple[bool, float]:
        return view.until is None, view.used_s

    def _check(self, state: KeptState, limits: Limits) -> None:
        bytes_max = limits.state_bytes_max
        if state.size_bytes > bytes_max // 2:  # otherwise one large state would evict all others
            raise StateTooLargeError(
                f"the state takes more than {bytes_max // 2} bytes of memory, half of the limit state_bytes_max; read "
                "the stream and fold its events, or raise the limit"
            )
        size_bytes = self._fit(state, bytes_max, evict_to_bytes=int(bytes_max * (1 - STATE_EVICTED_SHARE)))
        if size_bytes > bytes_max:
            raise OverloadedError("states of other streams use all their memory (state_bytes_max); try again")
