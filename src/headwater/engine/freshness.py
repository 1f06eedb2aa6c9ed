"""Freshness: what readers see of a shared store is compared with the store before it is said.

Other servers change streams, so a state in memory may be outdated. Every answer from memory is therefore preceded by a
check of its version. The checks of one turn of the loop are one query. A check never joins a query that was sent
before: that one may be older than a write that was acknowledged before the check began.

A check races the commits of this server. It may see a version that this server has just stored and not published yet.
So while events of a stream are pending, it is not touched: either its publication or its restoration brings what
readers see to the version that the check has found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream, replaced
from headwater.engine.messages import Ended, Slice
from headwater.log.state import Document, StreamState
from headwater.store.contract import DocumentKey, Key, SharedStore, version_of
from headwater.tasks import Tasks


class VersionChecks:
    """Asks for the versions of many keys with few queries."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._known: dict[Key, int] = {}  # of the next query
        self._answer: asyncio.Future[dict[Key, int]] | None = None  # to the next query
        self._running = 0
        self._tasks = Tasks()

    async def version(self, key: Key, known: int) -> int:
        """The present version of a key, of which a version is known."""
        if self._answer is None:
            loop = asyncio.get_running_loop()
            self._answer = loop.create_future()
            loop.call_soon(self._send)
        answer, known = self._answer, self._known.setdefault(key, known)
        return (await asyncio.shield(answer)).get(key, known)

    def _send(self) -> None:
        if self._answer is not None and self._running < bounds.VERSION_QUERIES_MAX:
            known, self._known = self._known, {}
            answer, self._answer = self._answer, None
            self._running += 1
            self._tasks.start(self._ask(known, answer))

    async def _ask(self, known: dict[Key, int], answer: asyncio.Future[dict[Key, int]]) -> None:
        try:
            answer.set_result(await self._store.changed(known))
        except Exception as error:  # noqa: BLE001 - those who wait raise it
            answer.set_exception(error)
            answer.exception()  # they may have been cancelled
        finally:
            self._running -= 1
            self._send()


class Freshness:
    """Brings what readers see to what the store has."""

    def __init__(
        self,
        store: SharedStore,
        catalogue: Catalogue,
        settled: Callable[[], Awaitable[None]],
        refreshed: Callable[[LoadedStream], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`settled` waits until a batch was published, or what it changed was restored. `refreshed` is told of streams
        that others have changed."""
        self._store = store
        self._catalogue = catalogue
        self._settled = settled
        self._refreshed = refreshed
        self._now_ms = now_ms
        self._checks = VersionChecks(store)

    # Reading

    async def at(self, path: str) -> LoadedStream | None:
        """The stream at a path as it was at some moment since the call; None if there was none."""
        catalogue = self._catalogue
        while True:
            stream = catalogue.visible(path)
            if stream is not None:
                await self.recheck(stream)
                if stream.is_there and catalogue.visible(path) is stream:
                    return stream
            elif catalogue.newest(path) is not None:  # this server is creating one
                if not await self._checks.version(path, 0):
                    return None
                if catalogue.visible(path) is None and catalogue.newest(path) is not None:
                    await self._settled()
            else:
                timeline = catalogue.timeline
                state = await self._store.load(path)
                if timeline != catalogue.timeline:
                    continue
                if state is None:
                    return None
                if (stream := self._added(state)) is not None:
                    return stream

    def _added(self, state: StreamState) -> LoadedStream | None:
        """A stream that was just loaded, in the catalogue; None if it has to be checked."""
        if self._catalogue.has(state.id) or self._catalogue.is_known(state.path):
            return None
        self._catalogue.add(state)
        return self._catalogue.visible(state.path)

    async def recheck(self, stream: LoadedStream) -> None:
        """When this returns, the stream is as it was at some moment since the call, or newer, or it is deleted."""
        if not stream.is_there:
            return
        version = await self._checks.version(stream.id, stream.durable_version)
        while stream.is_there and not 0 < version <= stream.durable_version:
            if stream.pending:
                await self._settled()
            elif not version:
                self.drop(stream)
            else:
                state = await self._store.load_id(stream.id)
                self.take(stream, state)

    async def document(self, key: str) -> Document | None:
        """A document as it was at some moment since the call."""
        timeline = self._catalogue.timeline
        loaded = self._catalogue.loaded_document(key)
        if loaded is not None:
            loaded.used = True
            document = loaded.durable
            version = await self._checks.version(DocumentKey(key), version_of(document))
            if version == version_of(document) and timeline == self._catalogue.timeline:
                return document
        document = await self._store.document(key)
        if timeline != self._catalogue.timeline:
            raise replaced()
        loaded = self._catalogue.loaded_document(key)
        if loaded is None:
            self._catalogue.add_document(key, document)
        elif not loaded.pending:
            loaded.newest = loaded.durable = document
        return document

    # What others have changed

    def take(self, stream: LoadedStream, state: StreamState | None) -> None:
        """Take over the state of a stream that was read from the store, unless a newer one is known."""
        if stream.pending or not stream.is_there:
            return
        if state is None:
            self.drop(stream)
        elif state.version > stream.state.version:
            seen = stream.seen
            self._catalogue.refresh(stream, state)
            if stream.seen != seen:
                self.tell(stream)

    def take_all(self, states: dict[Key, StreamState | Document | None]) -> None:
        """The same for many, and for documents. What is not in memory is ignored."""
        for key, state in states.items():
            if isinstance(key, DocumentKey):
                loaded = self._catalogue.loaded_document(key.key)
                if loaded is not None and not loaded.pending and not isinstance(state, StreamState):
                    loaded.newest = loaded.durable = state
            elif isinstance(key, int) and not isinstance(state, Document):
                stream = self._catalogue.visible_by_id(key)
                if stream is not None:
                    self.take(stream, state)

    def drop(self, stream: LoadedStream) -> None:
        """Another server has deleted a stream."""
        self._catalogue.drop(stream)
        if stream.live is not None:
            stream.live.end(Ended.DELETED)

    def tell(self, stream: LoadedStream) -> None:
        """Tell live readers that there is something new, which they read from the store."""
        if stream.live is not None and stream.deleted is not None:
            stream.live.end(Ended.DELETED)
        elif stream.live is not None:
            tail, state = stream.tail, stream.state
            stream.live.publish(
                Slice(
                    state.id,
                    state.kind,
                    tail,
                    tail,
                    state.offset(tail),
                    b"",
                    stream.closed,
                    self._now_ms(),
                    last_seqno=stream.last_seqno,
                )
            )
        if stream.deleted is None:
            self._refreshed(stream)
