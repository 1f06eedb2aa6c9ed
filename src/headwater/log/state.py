"""States of streams and documents, and `evolve`, which applies an event to a state.

`decide` needs nothing but these states. `evolve` may change the given state and return the same object. Replaying all
events gives the same states. The bytes of streams are in the store, not in the state.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headwater.limits import COMPACT_GRACE_S
from headwater.log.content import ROWS, ContentKind
from headwater.log.events import (
    Appended,
    Compacted,
    Created,
    DocumentEvent,
    DocumentWritten,
    Fork,
    ForkAdded,
    ForkReleased,
    Keeper,
    Retained,
    SoftDeleted,
    StreamEvent,
    TimelineBegun,
    Touched,
    Trimmed,
)
from headwater.log.offsets import Names, Offset, Snapshot, Span, Timeline
from headwater.log.producers import Producers, ProducerTuple, note
from headwater.log.retention import Counted, Retention
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
    first: int = 0  # position of the first record that is there; what was before it is trimmed
    trimmed_seqno: int = 0  # of a table: the last row that was trimmed
    inherited_from: int = 0  # forks may read its own bytes from here,
    inherited_end: int = 0  # up to here,
    inherited_gaps: tuple[tuple[int, int], ...] = ()  # but not between these: trimmed before the next fork was made
    retention: Retention | None = None
    first_ms: int = (
        0  # when the first record was appended; with `last` and `counted` only known if there is a retention
    )
    last: int = 0  # position of the last record
    counted: Counted = Counted()
    snapshots: tuple[Snapshot, ...] = ()  # what readers get in place of the front; oldest first
    dropped: Snapshot | None = None  # the last one that is not there any more
    severed: int = 0  # what leads to the content up to a position before this one was trimmed
    version: int = 1  # number of events; a shared store can use it to detect a concurrent write

    @property
    def start(self) -> int:
        """The position at which the stream's own bytes begin; bytes before it are inherited."""
        return self.lineage[-1].end if self.lineage else 0

    @property
    def size(self) -> int:
        """How many bytes of its own the stream has."""
        return self.tail - max(self.start, self.first)

    @property
    def unread(self) -> tuple[tuple[int, int], ...]:
        """The ranges of its own bytes that neither its readers nor those of forks can read."""
        start, first = self.start, self.first
        if first <= start:
            return ()
        if self.inherited_end <= max(start, self.inherited_from):  # there are no forks, or they inherit nothing
            return ((start, first),)
        ranges = ((start, self.inherited_from), *self.inherited_gaps, (max(start, self.inherited_end), first))
        return tuple([one for one in ranges if one[0] < one[1]])

    def is_unread(self, low: int, high: int) -> bool:
        """Whether none of its own bytes in a range can be read."""
        return any(one[0] <= low and high <= one[1] for one in self.unread)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the stream expires if it is not renewed."""
        if self.ttl_s is not None:
            return self.accessed_ms + self.ttl_s * 1000
        return self.expires_ms

    @property
    def due_ms(self) -> int | None:
        """The time at which the stream may expire or something of it may have to be trimmed."""
        if self.retention is None and not self.snapshots:
            return self.deadline_ms
        times_ms = [self.deadline_ms]
        if self.snapshots:
            times_ms.append(self._grace_ms())
        if self.retention is not None and self.tail > self.first:
            times_ms.append(self._trim_ms(self.retention))
        return min([one for one in times_ms if one is not None], default=None)

    @property
    def may_trim(self) -> bool:
        """Whether something may have to be trimmed at some time."""
        return self.retention is not None or bool(self.snapshots)

    def _grace_ms(self) -> int | None:
        """When something that a snapshot has replaced is to be trimmed."""
        replaced = (one for one in self.snapshots if one.next > self.first)
        return next((one.at_ms + self.grace_s * 1000 for one in replaced), None)

    @property
    def grace_s(self) -> int:
        """How long what a snapshot has replaced stays for readers that are there."""
        after_s = None if self.retention is None else self.retention.compact_after_s
        return max(COMPACT_GRACE_S, after_s or 0)

    def replaced_until(self, now_ms: int) -> int:
        """The position up to which a snapshot has replaced the stream for long enough."""
        return max(
            [one.next for one in self.snapshots if one.at_ms + self.grace_s * 1000 <= now_ms], default=self.first
        )

    def _trim_ms(self, retention: Retention) -> int | None:
        if retention.bytes is not None and self.tail - self.first > retention.bytes and self.last > self.first:
            return self.appended_ms
        if retention.messages is not None and self.counted.excess(retention.messages) > self.first:
            return self.appended_ms
        return None if retention.seconds is None else self.first_ms + retention.seconds * 1000 + 1

    @property
    def depth(self) -> int:
        return 0 if self.fork is None else self.fork.depth

    def offset(self, position: int) -> Offset:
        if position < 0 or self.lineage or self.timelines:
            return self.names.at(position)
        return Offset(self.id, position)

    @property
    def names(self) -> Names:
        return Names(self.id, self.lineage, self.timelines, self.snapshots, self.dropped, self.severed)

    @property
    def begin(self) -> int:
        """The position at which readers begin."""
        return self.names.begin(self.first) if self.snapshots else self.first

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


class StreamExtent(Protocol):
    """From where to where a stream goes: its newest state, or what readers see of it."""

    tail: int
    last_seqno: int
    closed: bool
    first: int
    trimmed_seqno: int
    retention: Retention | None
    snapshots: tuple[Snapshot, ...]
    dropped: Snapshot | None
    severed: int


def extend(extent: StreamExtent, kind: ContentKind, data: bytes, *, closes: bool) -> None:
    """Apply the data and the closure of an event to a stream."""
    extent.tail += len(data)
    if kind >= ROWS and data:
        extent.last_seqno = last_seqno_of(data)
    if closes:
        extent.closed = True


def replace_front(extent: StreamExtent, event: StreamEvent) -> None:
    """Apply what an event changes at the front of a stream: what was trimmed, the snapshots, and the retention."""
    if isinstance(event, Trimmed):
        dropped = dropped_by(extent.snapshots, event.position, keeps_snapshot=event.keeps_snapshot)
        if dropped:
            extent.snapshots, extent.dropped = extent.snapshots[len(dropped) :], dropped[-1]
        oldest = extent.snapshots[0].next if extent.snapshots else 0
        if oldest > event.position and (dropped or event.position > extent.first):
            extent.severed = oldest
        extent.first, extent.trimmed_seqno = event.position, event.seqno
    elif isinstance(event, Compacted):
        extent.snapshots = (*extent.snapshots, event.snapshot)
    elif isinstance(event, Retained):
        extent.retention = event.retention
    elif isinstance(event, SoftDeleted):
        extent.snapshots = ()


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
    if type(event) is Appended:
        append(state, event)
        return state
    state.version += 1
    if isinstance(event, TimelineBegun):
        state.timelines = (*state.timelines, Timeline(event.timeline, state.tail))
    elif isinstance(event, Touched):
        state.accessed_ms = max(state.accessed_ms, event.at_ms)
    elif isinstance(event, Trimmed):
        _trim(state, event)
    elif isinstance(event, Retained):
        _retain(state, event)
    elif isinstance(event, Compacted):
        replace_front(state, event)
    elif isinstance(event, ForkAdded | ForkReleased):
        _count_fork(state, event)
    elif isinstance(event, SoftDeleted):
        state.soft_deleted = True
        replace_front(state, event)
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


def append(state: StreamState, event: Appended) -> None:
    """`evolve` for the most frequent event."""
    if event.id != state.id:
        raise ValueError(f"an append to stream {event.id} does not apply to {_name(state)}")
    if event.position != state.tail:
        raise ValueError(f"append at {event.position}, but the stream ends at {state.tail}")
    if state.retention is not None and event.data:
        _count(state, state.retention, event.position, event.at_ms, event.messages)
    state.version += 1
    if event.close or state.kind >= ROWS:
        extend(state, state.kind, event.data, closes=event.close)
    else:
        state.tail += len(event.data)
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


def _count(state: StreamState, retention: Retention, position: int, at_ms: int, messages: int) -> None:
    """Note what retention has to know of a new record."""
    if position == state.first:
        state.first_ms = at_ms
    state.last = position
    if retention.messages is not None and messages:
        state.counted = state.counted.add(position, messages, retention.messages)


def _count_fork(state: StreamState, event: ForkAdded | ForkReleased) -> None:
    if isinstance(event, ForkAdded):
        state.forks += 1
        _let_inherit(state, event.end)
    else:
        state.forks -= 1
        if not state.forks:
            state.inherited_from = state.inherited_end = 0
            state.inherited_gaps = ()


def _let_inherit(state: StreamState, end: int) -> None:
    """Let forks read up to a position. What was trimmed between earlier forks and this one stays unread: the store may
    have freed it."""
    before = max(state.start, state.inherited_end)
    if end <= state.first:
        return
    if before <= max(state.start, state.inherited_from):  # earlier forks inherit none of its own bytes
        state.inherited_from = state.first
    elif before < state.first:
        state.inherited_gaps += ((before, state.first),)
    state.inherited_end = max(state.inherited_end, end)


def _trim(state: StreamState, event: Trimmed) -> None:
    if not state.first <= event.position <= state.tail:
        raise ValueError(f"trim at {event.position}, but the stream is from {state.first} to {state.tail}")
    state.first_ms = event.first_ms
    state.last = max(state.last, event.last)
    state.counted = state.counted.after(event.position)
    replace_front(state, event)


def dropped_by(snapshots: tuple[Snapshot, ...], position: int, *, keeps_snapshot: bool) -> tuple[Snapshot, ...]:
    """The snapshots that a trim at a position drops, oldest first."""
    return tuple([one for one in snapshots if one.next < position or (one.next == position and not keeps_snapshot)])


def _retain(state: StreamState, event: Retained) -> None:
    if state.retention is None:  # not known yet: the first search for something to trim finds them
        state.first_ms, state.last = state.created_ms, state.tail
    state.counted = event.counted
    replace_front(state, event)


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
        first=event.first,
        trimmed_seqno=event.trimmed_seqno,
        retention=event.retention,
        first_ms=event.at_ms if event.fork is None else 0,
        snapshots=event.snapshots,
        severed=event.severed,
    )
    state.tail = state.last = state.start
    if event.retention is not None and event.data:
        _count(state, event.retention, state.start, event.at_ms, event.messages)
    extend(state, event.kind, event.data, closes=event.closed)
    return state


def _name(state: StreamState | None) -> str:
    return "no stream" if state is None else f"stream {state.id} ({state.path})"
