"""Stores of several servers over one database, and what tests commit to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created, Deleted, DocumentWritten, Event
from headwater.log.moments import NEVER
from headwater.log.producers import ProducerTuple
from headwater.log.state import Document, StreamState, evolve, evolve_document
from headwater.store.contract import Commit, DocumentKey, Expects, Key, version_of
from headwater.store.postgres.opening import open_store
from headwater.store.postgres.store import PostgresStore


@contextlib.asynccontextmanager
async def opened(url: str, count: int = 1) -> AsyncIterator[list[PostgresStore]]:
    """The stores of some servers."""
    failures: list[BaseException] = []
    stores: list[PostgresStore] = []
    try:
        for _ in range(count):
            store = await open_store(url)
            stores.append(store)
            await store.start(failures.append, lambda: NEVER)
        yield stores
    finally:
        for store in stores:
            await store.close()
    assert not failures


def created(stream_id: int, path: str, data: bytes = b"") -> Created:
    return Created(id=stream_id, path=path, content_type="text/plain", kind=ContentKind.TEXT, at_ms=1000, data=data)


def creation(stream_id: int, path: str, data: bytes = b"") -> Commit:
    event = created(stream_id, path, data)
    return Commit((event,), (evolve(None, event),), {path: 0, stream_id: 0})


def append(state: StreamState, data: bytes, producer: ProducerTuple | None = None) -> Commit:
    """A record that appends to a stream, decided on this state of it, which changes."""
    event = Appended(state.id, state.tail, 2000, data, producer)
    expects: dict[Key, int] = {state.id: state.version}
    return Commit((event,), (evolve(state, event),), expects)


def deletion(state: StreamState) -> Commit:
    before = state.copy()
    return Commit((Deleted(state.id),), (before,), {state.id: state.version, state.path: state.id})


def writing(key: str, data: bytes, before: Document | None = None) -> Commit:
    event = DocumentWritten(key, data)
    return Commit((event,), (evolve_document(before, event),), {DocumentKey(key): version_of(before)})


def comparing(expects: Expects) -> Commit:
    """A record without events: an answer that was decided on these states."""
    return Commit((), (), expects)


def recorded(*events: Event, after: Sequence[StreamState | Document | None], expects: Expects) -> Commit:
    return Commit(events, tuple(after), expects)


async def commit(store: PostgresStore, *batch: Commit) -> None:
    """Commit a batch, and raise what the store reports."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        ended.set_exception(error) if error else ended.set_result(None)

    store.commit(batch, done)
    await ended


async def loaded(store: PostgresStore, path: str) -> StreamState:
    state = await store.load(path)
    assert state is not None
    return state


async def text(store: PostgresStore, stream_id: int) -> bytes:
    """All bytes of a stream."""
    state = await store.load_id(stream_id)
    assert state is not None
    data, position = b"", state.first
    while position < state.tail:
        piece = await store.read(stream_id, position, state.tail, 100_000)
        data += piece.data
        position = piece.next
    return data
