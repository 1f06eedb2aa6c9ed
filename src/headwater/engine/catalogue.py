"""The catalogue: the streams and documents in memory.

Commands are decided on the newest states, which include events that are not durable yet. Readers only see durable
states. A stream is loaded from the store when it is first needed (`loading.py`) and evicted when it has not been used
for a while.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection

import msgspec

from headwater import limits as bounds
from headwater.engine.messages import VisibleStream
from headwater.engine.tails import Tail
from headwater.errors import HeadwaterError, StreamGoneError, StreamNotFoundError, UnavailableError
from headwater.log.events import DOCUMENT_EVENTS, Appended, Created, Event, StreamEvent
from headwater.log.offsets import Names, Snapshot
from headwater.log.retention import Retention
from headwater.log.state import Document, StreamState, append, evolve, evolve_document


class LoadedStream(msgspec.Struct, eq=False, gc=False):
    """A stream in memory: the newest state for writers, the durable state for readers. `loaded_stream` makes one.

    There are many, so the garbage collector does not look at them. It could not free one that is part of a cycle. The
    only possible cycle is through the live readers in `live`, and `LiveReaders` clears that when the last one leaves.
    """

    id: int
    path: str
    state: StreamState  # includes accepted events that are not durable yet
    tail: int  # the durable tail, for readers
    closed: bool
    last_seqno: int  # durable, for readers
    touched_ms: int  # time of the last stored renewal
    first: int = 0  # durable, for readers, as are the next two
    trimmed_seqno: int = 0
    retention: Retention | None = None
    snapshots: tuple[Snapshot, ...] = ()  # durable too
    dropped: Snapshot | None = None
    severed: int = 0
    deleted: type[HeadwaterError] | None = None  # the error for readers after the stream was deleted
    pending: int = 0  # number of accepted events that are not durable yet
    live: Tail | None = None
    used: bool = True  # since the last eviction
    unwatched: int = 0  # the version of the `PathWatch` that has no interest in the path
    _info: VisibleStream | None = None  # cached
    _described: StreamState | None = None  # the state of the cached info,
    _version: tuple[object, ...] = ()  # and its version, and what of the stream changes when that is durable

    def info(self) -> VisibleStream:
        """The stream as readers see it. The result is cached until the stream changes."""
        state, info = self.state, self._info
        now = (state.version, self.tail, self.closed, self.first, self.retention, self.snapshots)
        if info is None or self._described is not state or self._version != now:
            self._info = info = self._describe(state)
            self._described, self._version = state, now
        return info

    @property
    def durable_version(self) -> int:
        """The version of what readers see. Each event increases the version by one."""
        return self.state.version - self.pending

    @property
    def seen(self) -> tuple[object, ...]:
        """What live readers and `compactable` have to be told of."""
        return self.tail, self.closed, self.deleted, self.retention, self.snapshots, self.first

    @property
    def begin(self) -> int:
        """The position at which readers begin."""
        return self.names.begin(self.first) if self.snapshots else self.first

    @property
    def size(self) -> int:
        """How many bytes a new reader gets, also inherited ones."""
        return self.names.size(self.begin, self.tail) if self.snapshots else self.tail - self.first

    @property
    def names(self) -> Names:
        """What the positions and offsets of what readers see depend on."""
        state = self.state
        return Names(self.id, state.lineage, state.timelines, self.snapshots, self.dropped, self.severed)

    def _describe(self, state: StreamState) -> VisibleStream:
        return VisibleStream(
            state.id,
            state.path,
            state.content_type,
            state.kind,
            state.created_ms,
            state.ttl_s,
            state.expires_ms,
            state.deadline_ms,
            self.names,
            self.tail,
            self.closed,
            self.last_seqno,
            self.first,
            self.trimmed_seqno,
            self.retention,
            state.owner,
            state.fork,
        )

    @property
    def is_there(self) -> bool:
        """Whether it is in the catalogue still, for readers; a soft-deleted stream is."""
        return self.deleted is None or self.deleted is StreamGoneError

    @property
    def readers(self) -> int:
        """How many live readers it has."""
        return 0 if self.live is None else len(self.live.subscribers) + len(self.live.waiters)

    def check_not_deleted(self) -> None:
        if self.deleted is StreamGoneError:
            raise StreamGoneError("the stream was deleted; forks still read its data")
        if self.deleted is UnavailableError:
            raise replaced()
        if self.deleted is not None:
            raise StreamNotFoundError("the stream was deleted")


def replaced() -> UnavailableError:
    """The error for what was begun before another database took the place of the former one."""
    return UnavailableError(
        "another database took the place of the former one; ask again", retry_after_s=bounds.RETRY_AFTER_S
    )


def loaded_stream(state: StreamState, *, durable: bool) -> LoadedStream:
    """A stream with this newest state. If it is not durable, readers see an empty stream."""
    return LoadedStream(
        state.id,
        state.path,
        state,
        state.tail if durable else state.start,
        state.closed and durable,
        state.last_seqno if durable else 0,
        state.accessed_ms,
        state.first,
        state.trimmed_seqno,
        state.retention,
        state.snapshots,
        state.dropped,
        state.severed,
        StreamGoneError if state.soft_deleted and durable else None,
    )


def _show_state(stream: LoadedStream, state: StreamState) -> None:
    """Let readers see a durable state."""
    stream.state = state
    stream.tail, stream.closed, stream.last_seqno = state.tail, state.closed, state.last_seqno
    stream.first, stream.trimmed_seqno, stream.retention = state.first, state.trimmed_seqno, state.retention
    stream.snapshots, stream.dropped, stream.severed = state.snapshots, state.dropped, state.severed
    stream.touched_ms = state.accessed_ms
    stream.deleted = StreamGoneError if state.soft_deleted else None


class LoadedDocument(msgspec.Struct, eq=False, gc=False):
    key: str
    newest: Document | None
    durable: Document | None
    pending: int = 0
    used: bool = True


class Catalogue:
    """The streams and documents in memory, each with its newest and its durable state.

    It is the `NewestStates` of `decide`: `at`, `get` and `document` return the newest states.
    """

    def __init__(self) -> None:
        self._paths: dict[str, LoadedStream] = {}  # newest, by path
        self.newest: Callable[[str], LoadedStream | None] = self._paths.get  # every append calls it
        self._ids: dict[int, LoadedStream] = {}  # newest, by id
        self._visible: dict[str, LoadedStream] = {}  # durable, by path
        self._deleting: dict[int, LoadedStream] = {}  # by id: streams whose deletion is accepted but not durable
        self._documents: dict[str, LoadedDocument] = {}
        self.renewals: dict[LoadedStream, None] = {}  # streams whose renewal is not stored yet
        self.timeline = 0  # the current timeline of the store
        self.count = 0  # all streams, loaded or not, including those that are not durable yet
        self.producers = 0  # of the loaded streams, also expired ones
        self.retained = 0  # how many of the loaded streams have a retention
        self.removals = 0  # number of streams and documents that left the catalogue
        self.deleted_id = 0  # the largest one of a stream that this server has deleted

    def __len__(self) -> int:
        return len(self._ids)

    # The newest states

    def at(self, path: str) -> StreamState | None:
        stream = self._paths.get(path)
        return None if stream is None else stream.state

    def get(self, stream_id: int) -> StreamState:
        return self._ids[stream_id].state

    def document(self, key: str) -> Document | None:
        return self._documents[key].newest

    def by_id(self, stream_id: int) -> LoadedStream | None:
        return self._ids.get(stream_id)

    def is_uncertain(self, path: str) -> bool:
        """Whether the newest state at a path is not durable yet."""
        stream = self._paths.get(path)
        return stream.pending > 0 if stream is not None else path in self._visible

    def apply(self, event: Event) -> LoadedStream | LoadedDocument:
        """Apply an event to the newest state. Readers do not see it yet."""
        if isinstance(event, DOCUMENT_EVENTS):
            document = self._documents[event.key]
            document.newest = evolve_document(document.newest, event)
            document.pending += 1
            return document
        stream = self._create(event) if isinstance(event, Created) else self._change(event)
        stream.pending += 1
        return stream

    def apply_append(self, stream: LoadedStream, event: Appended) -> None:
        """A faster `apply` for the most frequent event."""
        if event.producer is None:
            append(stream.state, event)
        else:
            self._change(event)
        stream.pending += 1

    def _create(self, event: Created) -> LoadedStream:
        state = evolve(None, event)
        if state is None:
            raise RuntimeError("a created stream has a state")
        stream = loaded_stream(state, durable=False)
        self._paths[stream.path] = self._ids[stream.id] = stream
        self.count += 1
        self.retained += state.retention is not None
        return stream

    def _change(self, event: StreamEvent) -> LoadedStream:
        stream = self._ids[event.id]
        state = stream.state
        before, was_retained = _producers_of(state), state.retention is not None
        after = evolve(state, event)
        self.producers += _producers_of(state) - before
        self.retained += (state.retention is not None) - was_retained
        if after is None:
            self.deleted_id = max(self.deleted_id, stream.id)
            self._forget(stream)
            self._deleting[stream.id] = stream
            self.count -= 1
        return stream

    def _forget(self, stream: LoadedStream) -> None:
        del self._ids[stream.id]
        self.producers -= _producers_of(stream.state)
        self.retained -= stream.state.retention is not None
        self.renewals.pop(stream, None)
        if self._paths.get(stream.path) is stream:
            del self._paths[stream.path]
        self.removals += 1

    # The durable states

    def visible(self, path: str) -> LoadedStream | None:
        return self._visible.get(path)

    def visible_by_id(self, stream_id: int) -> LoadedStream | None:
        """A stream whose deletion, if any, is not durable yet."""
        return self._ids.get(stream_id) or self._deleting.get(stream_id)

    @property
    def documents_loaded(self) -> int:
        return len(self._documents)

    def all_visible(self) -> Collection[LoadedStream]:
        """The streams that readers see now. As a copy of the dictionary: the garbage collector would look at a list."""
        return self._visible.copy().values()

    def show(self, stream: LoadedStream) -> None:
        self._visible[stream.path] = stream

    def hide(self, stream: LoadedStream) -> None:
        """Remove a stream whose deletion is durable."""
        self._deleting.pop(stream.id, None)
        if self._visible.get(stream.path) is stream:
            del self._visible[stream.path]

    # Loading

    def is_known(self, path: str) -> bool:
        """Whether the newest state at a path is in memory. A visible stream that is not the newest is being deleted."""
        return path in self._paths or path in self._visible

    def has(self, key: str | int) -> bool:
        """Whether a stream is loaded, by its path or its id."""
        return key in self._paths if isinstance(key, str) else key in self._ids

    def add(self, state: StreamState) -> bool:
        """Add a stream that was loaded from the store, unless it is being deleted. In a shared store another server may
        have created another one at its path since."""
        newest = self._paths.get(state.path)
        if state.id in self._deleting or (newest is not None and newest.id > state.id):
            return False
        if state.id not in self._ids:
            stream = loaded_stream(state, durable=True)
            self._ids[stream.id] = self._paths[stream.path] = self._visible[stream.path] = stream
            self.producers += _producers_of(state)
            self.retained += state.retention is not None
        return True

    def loaded_document(self, key: str) -> LoadedDocument | None:
        return self._documents.get(key)

    def add_document(self, key: str, document: Document | None) -> None:
        self._documents[key] = LoadedDocument(key, document, document)

    # Eviction and rollback

    async def evict(self, streams_max: int, documents_max: int) -> None:
        """If too many are loaded, evict streams and documents that were not used since the last call."""
        too_many = len(self._ids) > streams_max or self.producers > bounds.PRODUCERS_LOADED_MAX
        # The garbage collector looks at the elements of a list, but not at those of an array.
        for count, stream_id in enumerate(array("q", self._ids if too_many else ())):
            if count % bounds.YIELD_EVERY_STREAMS == bounds.YIELD_EVERY_STREAMS - 1:
                await asyncio.sleep(0)
            stream = self._ids.get(stream_id)
            if len(self._ids) <= streams_max:
                if self.producers <= bounds.PRODUCERS_LOADED_MAX:
                    break
                if stream is not None and not _producers_of(stream.state):
                    continue
            if stream is not None:
                self._evict(stream)
        if len(self._documents) > documents_max:
            unused = [document for document in self._documents.values() if not document.pending and not document.used]
            for document in unused:
                del self._documents[document.key]
                self.removals += 1
            for document in self._documents.values():
                document.used = False

    def _evict(self, stream: LoadedStream) -> None:
        if stream.used:
            stream.used = False
        elif not stream.pending and stream.live is None and stream not in self.renewals:
            self._forget(stream)
            if self._visible.get(stream.path) is stream:
                del self._visible[stream.path]

    def undo(self, stream: LoadedStream) -> None:
        """Drop the newest state of a stream; `restore` replaces it with the durable state."""
        if self._ids.get(stream.id) is stream:
            self._forget(stream)
        self._deleting.pop(stream.id, None)
        stream.pending = 0

    def restore(self, stream: LoadedStream, state: StreamState) -> None:
        stream.touched_ms = state.accessed_ms
        if state.accessed_ms < stream.state.accessed_ms:  # keep renewals by reads
            state.accessed_ms = stream.state.accessed_ms
            self.renewals[stream] = None
        stream.state = state
        self._ids[stream.id] = self._paths[stream.path] = stream
        self.producers += _producers_of(state)
        self.retained += state.retention is not None

    # What other servers change in a shared store

    def refresh(self, stream: LoadedStream, state: StreamState) -> None:
        """Replace the state of a stream, of which nothing is pending, by a newer durable one."""
        if self._ids.get(stream.id) is stream:
            self.producers += _producers_of(state) - _producers_of(stream.state)
            self.retained += (state.retention is not None) - (stream.state.retention is not None)
        _show_state(stream, state)

    def reinstate(self, stream: LoadedStream, state: StreamState) -> None:
        """Bring back a stream that was undone, with the durable state, unless there is a newer one at its path."""
        newest = self._paths.get(stream.path)
        if newest is not None and newest.id > stream.id:
            self.drop(stream)
            return
        self._ids[stream.id] = self._paths[stream.path] = self._visible[stream.path] = stream
        self.producers += _producers_of(state)
        self.retained += state.retention is not None
        _show_state(stream, state)

    def drop(self, stream: LoadedStream) -> None:
        """Remove a stream, of which nothing is pending, and which does not exist any more."""
        if self._ids.get(stream.id) is stream:
            self._forget(stream)
        self.hide(stream)
        stream.deleted = StreamNotFoundError

    def forget_all(self) -> None:
        """Forget everything, because another database took the place of the former one. Whoever still has a stream
        finds that it cannot be used any more."""
        for streams in (self._ids, self._visible, self._deleting):
            for stream in streams.values():
                stream.deleted = UnavailableError
                stream.pending = 0
        self.removals += len(self._ids) + len(self._documents) + 1  # also what is being loaded is outdated
        for names in (self._paths, self._ids, self._visible, self._deleting, self._documents, self.renewals):
            names.clear()
        self.producers = self.retained = 0


def _producers_of(state: StreamState) -> int:
    return len(state.producers) + len(state.expired_producers)
