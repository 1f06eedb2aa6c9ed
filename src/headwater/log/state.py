"""States of streams and documents, and `evolve`, which applies an event to a state.

`decide` needs nothing but these states. `evolve` may change the given state and return the same object. Replaying all
events gives the same states. The bytes of streams are in the store, not in the state.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headwater.log.content import ROWS, ContentKind
from headwater.log.events import (
    Appended,
    Created,
    DocumentEvent,
    DocumentWritten,
    Fork,
    ForkAdded,
    ForkReleased,
    Keeper,
    SoftDeleted,
    StreamEvent,
    TimelineBegun,
    Touched,
)
from headwater.log.offsets import Names, Offset, Span, Timeline
from headwater.log.producers import Producers, ProducerTuple, note
from headwater.log.row_framing import last_seqno_of


class StreamState(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A stream. `id` identifies the incarnation: a stream that is created again at the same path has another id."""

    id: int
    path: str
    content_type: str
    kind: ContentKind
    created_ms: int
    accessed_ms: int
    tail: int
    appended_ms: int = 0  # when the last record was appended
    last_seqno: int = 0  # of a table: its last row
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    closed_by: ProducerTuple | None = None
    seq: str | None = None
    producers: Producers = {}
    expired_producers: dict[int, int] = {}  # hash of the key → epoch
    fork: Fork | None = None
    lineage: tuple[Span, ...] = ()  # inherited bytes, oldest first
    timelines: tuple[Timeline, ...] = ()  # in which the bytes were appended, if the store was restored; oldest first
    forks: int = 0  # number of existing forks
    soft_deleted: bool = False
    owner: str = ""  # the name of the token that created it; empty: none
    keeper: Keeper | None = None  # of a view, which only its keeper appends to
    version: int = 1  # number of events; a shared store can use it to detect a concurrent write

    @property
    def start(self) -> int:
        """The position at which the stream's own bytes begin; bytes before it are inherited."""
        return self.lineage[-1].end if self.lineage else 0

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the stream expires if it is not renewed."""
        if self.ttl_s is not None:
            return self.accessed_ms + self.ttl_s * 1000
        return self.expires_ms

    @property
    def depth(self) -> int:
        return 0 if self.fork is None else self.fork.depth

    def offset(self, position: int) -> Offset:
        return self.names.at(position) if self.lineage or self.timelines else Offset(self.id, position)

    @property
    def names(self) -> Names:
        return Names(self.id, self.lineage, self.timelines)

    @property
    def timeline(self) -> int:
        """The id in the offsets of the next bytes, unless a timeline begins before them."""
        return max(self.id, self.timelines[-1].id) if self.timelines else self.id

    def copy(self) -> StreamState:
        """A copy that can be changed independently."""
        return msgspec.structs.replace(
            self, producers=dict(self.producers), expired_producers=dict(self.expired_producers)
        )


def without_producers(state: StreamState) -> StreamState:
    return msgspec.structs.replace(state, producers={}, expired_producers={})


class StreamEnd(Protocol):
    """How far a stream goes: its newest state, or what readers see of it."""

    tail: int
    last_seqno: int
    closed: bool


def extend(end: StreamEnd, kind: ContentKind, data: bytes, *, closes: bool) -> None:
    """Apply the data and the closure of an event to a stream."""
    end.tail += len(data)
    if kind >= ROWS and data:
        end.last_seqno = last_seqno_of(data)
    if closes:
        end.closed = True


class Document(msgspec.Struct, frozen=True, gc=False):
    """A small named value. `version` counts its writes."""

    key: str
    data: bytes
    version: int = 1


def evolve(state: StreamState | None, event: StreamEvent) -> StreamState | None:
    """The state after an event; None if the stream was deleted."""
    if type(event) is Created:
        return _created(event)
    if state is None or state.id != event.id:
        raise ValueError(f"{type(event).__name__} does not apply to {_name(state)}")
    state.version += 1
    if type(event) is Appended:
        _append(state, event)
    elif isinstance(event, TimelineBegun):
        state.timelines = (*state.timelines, Timeline(event.timeline, state.tail))
    elif isinstance(event, Touched):
        state.accessed_ms = max(state.accessed_ms, event.at_ms)
    elif isinstance(event, ForkAdded):
        state.forks += 1
    elif isinstance(event, ForkReleased):
        state.forks -= 1
    elif isinstance(event, SoftDeleted):
        state.soft_deleted = True
    else:
        return None
    return state


def evolve_document(document: Document | None, event: DocumentEvent) -> Document | None:
    """The document after an event; None if it was deleted."""
    if isinstance(event, DocumentWritten):
        return Document(event.key, event.data, 1 if document is None else document.version + 1)
    if document is None:
        raise ValueError(f"deleted document {event.key!r} does not exist")
    return None


def _append(state: StreamState, event: Appended) -> None:
    if event.position != state.tail:
        raise ValueError(f"append at {event.position}, but the stream ends at {state.tail}")
    extend(state, state.kind, event.data, closes=event.close)
    at_ms = event.at_ms
    if at_ms > state.accessed_ms:
        state.accessed_ms = at_ms
    if at_ms > state.appended_ms:
        state.appended_ms = at_ms
    if event.seq is not None:
        state.seq = event.seq
    if event.producer is not None:
        note(state.producers, state.expired_producers, event.producer, at_ms)
    if event.close:
        state.closed_by = event.producer


def _created(event: Created) -> StreamState:
    state = StreamState(
        id=event.id,
        path=event.path,
        content_type=event.content_type,
        kind=event.kind,
        created_ms=event.at_ms,
        accessed_ms=event.at_ms,
        appended_ms=event.at_ms,
        tail=0,
        ttl_s=event.ttl_s,
        expires_ms=event.expires_ms,
        fork=event.fork,
        lineage=event.lineage,
        timelines=event.timelines,
        last_seqno=event.last_seqno,
        owner=event.owner,
        keeper=event.keeper,
    )
    state.tail = state.start
    extend(state, event.kind, event.data, closes=event.closed)
    return state


def _name(state: StreamState | None) -> str:
    return "no stream" if state is None else f"stream {state.id} ({state.path})"
