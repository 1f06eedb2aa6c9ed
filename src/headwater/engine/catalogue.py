"""The catalogue: the streams and documents in memory, as writers and as readers see them.

Writers decide on the newest states, which hold events that may not be durable yet. Readers see what is durable. A
stream is loaded from the store when it is first needed and evicted when it has not been used for a while.

A load may take long, and the stream may be loaded by someone else, change, be evicted or be deleted meanwhile. What
such a load brings is never used: a load whose stream left the catalogue since it began is done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from headwater import limits as bounds
from headwater.engine.messages import StreamInfo
from headwater.engine.tails import Tail
from headwater.errors import HeadwaterError, StreamGoneError, StreamNotFoundError
from headwater.log.commands import Command, Create, WriteDocuments
from headwater.log.events import DOCUMENT_EVENTS, Appended, Created, Event, StreamEvent
from headwater.log.state import Document, StreamState, evolve, evolve_document
from headwater.store.contract import Store

Key = TypeVar("Key", str, int)


class LoadedStream:
    """A stream in memory: the newest state for writers, the durable part of it for readers."""

    __slots__ = ("closed", "deleted", "id", "live", "path", "pending", "state", "tail", "touched_ms", "used")

    def __init__(self, state: StreamState, *, durable: bool) -> None:
        self.id = state.id
        self.path = state.path
        self.state = state  # includes what was accepted and is not yet durable
        self.tail = state.tail if durable else state.start  # readers see this much
        self.closed = state.closed and durable
        self.deleted: type[HeadwaterError] | None = None  # what readers find once the stream is deleted
        self.pending = 0  # accepted events that are not yet durable
        self.live: Tail | None = None
        self.used = True  # since the last look for streams to evict
        self.touched_ms = state.accessed_ms  # the last renewal that was recorded
        if state.soft_deleted and durable:
            self.deleted = StreamGoneError

    def info(self) -> StreamInfo:
        state = self.state
        return StreamInfo(
            state.id,
            state.path,
            state.content_type,
            state.kind,
            state.created_ms,
            state.ttl_s,
            state.expires_ms,
            state.deadline_ms,
            state.lineage,
            self.tail,
            self.closed,
        )

    def check_not_deleted(self) -> None:
        if self.deleted is StreamGoneError:
            raise StreamGoneError("the stream was deleted; forks still read its data")
        if self.deleted is not None:
            raise StreamNotFoundError("the stream was deleted")


class LoadedDocument:
    __slots__ = ("durable", "key", "newest", "pending", "used")

    def __init__(self, key: str, document: Document | None) -> None:
        self.key = key
        self.newest = self.durable = document
        self.pending = 0
        self.used = True


class Catalogue:
    """It is the `View` that decisions look at: `at`, `get` and `document` return the newest states."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._paths: dict[str, LoadedStream] = {}  # newest, by path
        self._ids: dict[int, LoadedStream] = {}  # newest, by id
        self._visible: dict[str, LoadedStream] = {}  # durable, by path
        self._deleting: set[int] = set()  # accepted deletions that are not durable yet
        self._documents: dict[str, LoadedDocument] = {}
        self._removals = 0  # how often a stream or document has left the catalogue
        self._loading: dict[object, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    # The newest states, for decisions

    def at(self, path: str) -> StreamState | None:
        stream = self._paths.get(path)
        return None if stream is None else stream.state

    def get(self, stream_id: int) -> StreamState:
        return self._ids[stream_id].state

    def document(self, key: str) -> Document | None:
        return self._documents[key].newest

    def newest(self, path: str) -> LoadedStream | None:
        return self._paths.get(path)

    def by_id(self, stream_id: int) -> LoadedStream | None:
        return self._ids.get(stream_id)

    def is_uncertain(self, path: str) -> bool:
        """Whether what writers see at a path is not durable yet."""
        stream = self._paths.get(path)
        return stream.pending > 0 if stream is not None else path in self._visible

    def apply(self, event: Event) -> LoadedStream | LoadedDocument:
        """Change the newest state; readers do not see it yet."""
        if isinstance(event, DOCUMENT_EVENTS):
            document = self._documents[event.key]
            document.newest = evolve_document(document.newest, event)
            document.pending += 1
            return document
        stream = self._create(event) if isinstance(event, Created) else self._change(event)
        stream.pending += 1
        return stream

    def apply_append(self, stream: LoadedStream, event: Appended) -> None:
        """The same for the one event that most commands come down to."""
        evolve(stream.state, event)
        stream.pending += 1

    def _create(self, event: Created) -> LoadedStream:
        state = evolve(None, event)
        if state is None:
            raise RuntimeError("a created stream has a state")
        stream = LoadedStream(state, durable=False)
        self._paths[stream.path] = self._ids[stream.id] = stream
        return stream

    def _change(self, event: StreamEvent) -> LoadedStream:
        stream = self._ids[event.id]
        if evolve(stream.state, event) is None:
            self._forget(stream)
            self._deleting.add(stream.id)
        return stream

    def _forget(self, stream: LoadedStream) -> None:
        del self._ids[stream.id]
        if self._paths.get(stream.path) is stream:
            del self._paths[stream.path]
        self._removals += 1

    # What is durable, for readers

    def visible(self, path: str) -> LoadedStream | None:
        return self._visible.get(path)

    def all_visible(self) -> list[LoadedStream]:
        return list(self._visible.values())

    def show(self, stream: LoadedStream) -> None:
        self._visible[stream.path] = stream

    def hide(self, stream: LoadedStream) -> None:
        """A deletion is durable."""
        self._deleting.discard(stream.id)
        if self._visible.get(stream.path) is stream:
            del self._visible[stream.path]

    # Loading

    async def load(self, path: str) -> None:
        """Load the stream at a path, if there is one."""
        while not self._is_known(path):
            if not await self._load_stream(path, self._store.load):
                return

    async def load_for(self, command: Command) -> None:
        """Load everything that a decision on a command looks at."""
        absent: set[str | int] = set()
        removals = self._removals
        while True:
            if removals != self._removals:  # something that was there may have been evicted
                absent.clear()
                removals = self._removals
            key = next((key for key in self._needed(command) if key not in absent), None)
            if key is None:
                break
            load = self._store.load if isinstance(key, str) else self._store.load_id
            if not await self._load_stream(key, load):  # type: ignore[type-var,arg-type]
                absent.add(key)
        await self._load_documents(command)
        if removals != self._removals:
            await self.load_for(command)

    def _needed(self, command: Command) -> Iterator[str | int]:
        """Streams that are still to be loaded: at the path, the source of a fork, and the ancestors of the stream at
        the path, which its deletion may release."""
        if isinstance(command, WriteDocuments):
            return
        if not self._is_known(command.path):
            yield command.path
        if isinstance(command, Create) and command.fork is not None and not self._is_known(command.fork.source):
            yield command.fork.source
        stream = self._paths.get(command.path)
        while stream is not None and stream.state.fork is not None:
            source_id = stream.state.fork.source_id
            stream = self._ids.get(source_id)
            if stream is None:
                yield source_id

    def _is_known(self, path: str) -> bool:
        """Whether the newest state at a path is known. A visible stream that is not the newest is being deleted."""
        return path in self._paths or path in self._visible

    async def _load_stream(self, key: Key, load: Callable[[Key], Awaitable[StreamState | None]]) -> bool:
        """Load a stream, once for everyone who asks meanwhile; whether there may be one now."""
        loading = self._loading.get(key)
        if loading is not None:
            await asyncio.shield(loading)
            return True
        loading = self._loading[key] = asyncio.get_running_loop().create_future()
        try:
            removals = self._removals
            state = await load(key)
            if state is None:
                return key in self._paths if isinstance(key, str) else key in self._ids
            if removals == self._removals or state.id in self._ids:
                return self._add(state)
            return True  # to be loaded again
        finally:
            del self._loading[key]
            loading.set_result(None)

    def _add(self, state: StreamState) -> bool:
        if state.id in self._deleting:
            return False
        if state.id not in self._ids:
            stream = LoadedStream(state, durable=True)
            self._ids[stream.id] = self._paths[stream.path] = self._visible[stream.path] = stream
        return True

    async def _load_documents(self, command: Command) -> None:
        for asked in getattr(command, "documents", ()):
            await self.load_document(asked.key)

    async def load_document(self, key: str) -> LoadedDocument:
        while (loaded := self._documents.get(key)) is None:
            removals = self._removals
            document = await self._store.document(key)
            if key not in self._documents and removals == self._removals:
                self._documents[key] = LoadedDocument(key, document)
        loaded.used = True
        return loaded

    # Leaving the catalogue

    async def evict(self, streams_max: int, documents_max: int) -> None:
        """Evict streams and documents that were not used since the last look, if too many are loaded."""
        excess = len(self._ids) - streams_max
        for count, stream_id in enumerate(list(self._ids) if excess > 0 else ()):
            if count % bounds.YIELD_EVERY_STREAMS == bounds.YIELD_EVERY_STREAMS - 1:
                await asyncio.sleep(0)
            stream = self._ids.get(stream_id)
            if stream is not None and excess > 0 and self._evict(stream):
                excess -= 1
        if len(self._documents) > documents_max:
            for document in [found for found in self._documents.values() if not found.pending and not found.used]:
                del self._documents[document.key]
                self._removals += 1
            for document in self._documents.values():
                document.used = False

    def _evict(self, stream: LoadedStream) -> bool:
        if stream.used:
            stream.used = False
            return False
        if stream.pending or stream.live is not None:
            return False
        self._forget(stream)
        if self._visible.get(stream.path) is stream:
            del self._visible[stream.path]
        return True

    async def roll_back(self, changed: set[LoadedStream], documents: set[LoadedDocument]) -> None:
        """Put streams and documents back to what is durable. No command may be decided meanwhile."""
        for stream in changed:
            if self._ids.get(stream.id) is stream:
                self._forget(stream)
            self._deleting.discard(stream.id)
        for stream in changed:
            state = await self._store.load_id(stream.id)
            stream.pending = 0
            if state is not None:
                stream.state = state
                self._ids[stream.id] = self._paths[stream.path] = stream
        for document in documents:
            document.newest, document.pending = document.durable, 0
