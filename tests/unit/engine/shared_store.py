"""A database that several servers share, as one of them sees it: the test changes it as other servers do, and says when
it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.large_reads import LargeReads
from headwater.engine.messages import Reason, Slice
from headwater.engine.tails import Tail
from headwater.errors import UnavailableError
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created
from headwater.log.state import Document, StreamState, evolve
from headwater.store.contract import Commit, DocumentKey, Done, Expects, Key, Moved, SharedStore, version_of


def created(stream_id: int, path: str) -> Created:
    return Created(id=stream_id, path=path, content_type="text/plain", kind=ContentKind.TEXT, at_ms=1)


def stream_state(stream_id: int, path: str, data: bytes = b"") -> StreamState:
    """A stream with an append of each byte."""
    state = evolve(None, created(stream_id, path))
    assert state is not None
    for one in data:
        assert evolve(state, Appended(stream_id, state.tail, 2, bytes([one]))) is state
    return state


class OtherServers:
    """What other servers have stored, and a `SharedStore` that asks it."""

    shared = True

    def __init__(self, *states: StreamState) -> None:
        self.states = {state.id: state for state in states}
        self.stored_documents: dict[str, Document] = {}
        self.asked: list[tuple[str, Any]] = []  # each question, with what it was about
        self.commits: list[Sequence[Commit]] = []
        self.moves: list[list[Moved]] = []  # the answers to `moved_since`
        self.told: Callable[[Sequence[Moved]], None] = lambda _: None
        self.is_lost = False  # whether the database cannot be reached
        self.timeline = 0
        self.streams = 0
        self.answering = asyncio.Event()
        self.answering.set()

    @property
    def store(self) -> SharedStore:
        return cast(SharedStore, self)

    def put(self, state: StreamState) -> None:
        self.states[state.id] = state

    def _version(self, key: Key) -> int:
        if isinstance(key, DocumentKey):
            return version_of(self.stored_documents.get(key.key))
        state = self._state(key)
        if state is None:
            return 0
        return state.version if isinstance(key, int) else state.id

    def _state(self, key: int | str) -> StreamState | None:
        return next((one for one in self.states.values() if key in (one.id, one.path)), None)

    def _value(self, key: Key) -> StreamState | Document | None:
        if isinstance(key, DocumentKey):
            return self.stored_documents.get(key.key)
        state = self._state(key)
        return None if state is None else state.copy()

    async def _answer(self, what: str, about: Any, answer: Any) -> Any:
        """Answer what was the case when the question was asked."""
        self.asked.append((what, about))
        await self.answering.wait()
        if self.is_lost:
            raise UnavailableError("there is no database")
        return answer

    def wall_s(self) -> float:
        return time.time()

    async def changed(self, known: Expects) -> dict[Key, int]:
        newer = {key: self._version(key) for key, version in known.items() if self._version(key) != version}
        return cast(dict[Key, int], await self._answer("changed", dict(known), newer))

    async def load(self, path: str) -> Any:
        return await self._answer("load", path, self._value(path))

    async def load_id(self, stream_id: int) -> Any:
        return await self._answer("load_id", stream_id, self._value(stream_id))

    async def document(self, key: str) -> Any:
        return await self._answer("document", key, self.stored_documents.get(key))

    async def locked(self, keys: Collection[Key]) -> Any:
        return await self._answer("locked", set(keys), {key: self._value(key) for key in keys})

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        self.commits.append(batch)
        asyncio.get_running_loop().call_soon(done, None)

    async def watch(self, moved: Callable[[Sequence[Moved]], None]) -> None:
        self.told = moved

    async def moved_since(self, cursor: str) -> tuple[list[Moved], str]:
        moves = self.moves.pop(0) if cursor and self.moves else []
        return cast(tuple[list[Moved], str], await self._answer("moved_since", cursor, (moves, f"{cursor}+")))


class LiveReader:
    """A live reader that notes what it is told."""

    kind = "test"

    def __init__(self) -> None:
        self.tails: list[int] = []
        self.reasons: list[Reason] = []

    def deliver(self, update: Slice) -> None:
        self.tails.append(update.next)

    def ended(self, reason: Reason) -> None:
        self.reasons.append(reason)


def loaded(catalogue: Catalogue, state: StreamState) -> LoadedStream:
    assert catalogue.add(state.copy())
    stream = catalogue.visible_by_id(state.id)
    assert stream is not None
    return stream


def watched(stream: LoadedStream) -> LiveReader:
    """A live reader of a stream."""
    reader = LiveReader()
    stream.live = stream.live or Tail(LargeReads(1 << 20))
    stream.live.subscribers[reader] = None
    return reader
