"""`decide(states, command)`: the events and the reply of a command.

It reads the newest states and returns the events to store and the reply, or raises the error for the
client. It changes nothing.

The stream at a path is one of:

    no stream                                  absent
    expired, no forks                          absent; the next create or sweep deletes it
    deleted or expired while forks read it     gone
    otherwise                                  live
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headwater import limits
from headwater.errors import (
    ConfigurationError,
    ConflictError,
    ContentTypeError,
    DocumentConflictError,
    EmptyBodyError,
    InvalidForkError,
    InvalidRetentionError,
    MissingContentTypeError,
    PathBlockedError,
    ReadOnlyError,
    SeqNoRegressionError,
    SequenceRegressionError,
    SourceGoneError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
    TailMovedError,
)
from headwater.log import json_framing, producers, row_framing
from headwater.log.commands import (
    Append,
    Command,
    Compact,
    Create,
    Delete,
    Expire,
    ForkRequest,
    Reply,
    Retain,
    Trim,
    WriteDocument,
)
from headwater.log.content import DEFAULT_CONTENT_TYPE, ROWS, ContentKind, kind_of, same_type
from headwater.log.events import (
    Appended,
    Compacted,
    Created,
    Deleted,
    DocumentDeleted,
    DocumentEvent,
    DocumentWritten,
    Event,
    Fork,
    ForkAdded,
    ForkReleased,
    Record,
    Retained,
    SoftDeleted,
    TimelineBegun,
    Trimmed,
)
from headwater.log.offsets import BEGINNING, Offset, Snapshot, first_seqno
from headwater.log.producers import ProducerTuple
from headwater.log.retention import KEEP_ALL, Counted, Retention
from headwater.log.state import Document, StreamState, dropped_by, evolve, evolve_document


class NewestStates(Protocol):
    """The newest states, as input of `decide`."""

    def at(self, path: str) -> StreamState | None: ...

    def get(self, stream_id: int) -> StreamState: ...

    def document(self, key: str) -> Document | None: ...

    @property
    def timeline(self) -> int:
        """The id of the current timeline; 0 if the store was never restored."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    events: Record
    reply: Reply


_NOTHING: Record = ()
_JSON = ContentKind.JSON  # in Python 3.11 much faster than the attribute


def decide(states: NewestStates, command: Command, messages_max: int, producers_max: int) -> Decision:
    """Decide a command. `messages_max` limits the number of messages in a JSON body, `producers_max` that of the
    producers of a stream."""
    if type(command) is Append:
        current = states.at(command.path)
        if current is None or current.soft_deleted or current.ttl_s is not None or current.expires_ms is not None:
            current = live(current, command.now_ms)  # most appends need not call it
        state = current
        decision = _append(states.timeline, state, command, messages_max, producers_max)
    elif isinstance(command, Create):
        decision = _create(states, states.at(command.path), command, messages_max)
    elif isinstance(command, Delete):
        state = live(states.at(command.path), command.now_ms)
        check_end(state, command.ends)
        decision = Decision(_removal(states, state, command.now_ms), Reply())
    elif isinstance(command, Retain):
        decision = _retain(live(states.at(command.path), command.now_ms), command)
    elif isinstance(command, Trim):
        decision = _trim(states, live(states.at(command.path), command.now_ms), command)
    elif isinstance(command, Compact):
        decision = _compact(states, live(states.at(command.path), command.now_ms), command)
    elif isinstance(command, Expire):
        return Decision(_expiry(states, states.at(command.path), command.now_ms), Reply())
    else:
        return Decision(_written(states, command.documents), Reply())
    if command.documents and decision.events:
        return Decision(decision.events + _written(states, command.documents), decision.reply)
    return decision


def _expiry(states: NewestStates, state: StreamState | None, now_ms: int) -> Record:
    if state is None or state.soft_deleted or not is_expired(state, now_ms):
        return _NOTHING
    return _removal(states, state, now_ms)


def _written(states: NewestStates, documents: tuple[WriteDocument, ...]) -> Record:
    events: list[DocumentEvent] = []
    newest: dict[str, Document | None] = {}
    for write in documents:
        known = newest[write.key] if write.key in newest else states.document(write.key)
        version = 0 if known is None else known.version
        if write.expected not in (None, version):
            raise DocumentConflictError(f"document {write.key!r} has version {version}, expected {write.expected}")
        if write.data is None and known is None:
            continue
        event = DocumentDeleted(write.key) if write.data is None else DocumentWritten(write.key, write.data)
        newest[write.key] = evolve_document(known, event)
        events.append(event)
    return tuple(events)


def is_expired(state: StreamState, now_ms: int) -> bool:
    if state.ttl_s is None and state.expires_ms is None:
        return False
    deadline_ms = state.deadline_ms
    return deadline_ms is not None and now_ms >= deadline_ms


def live(state: StreamState | None, now_ms: int) -> StreamState:
    """Return the state if the stream is live; raise the error for the client otherwise."""
    if state is None:
        raise StreamNotFoundError("no stream at this path")
    if state.soft_deleted:
        raise StreamGoneError("the stream was deleted; forks still read its data")
    check_not_expired(state, now_ms)
    return state


def check_not_expired(state: StreamState, now_ms: int) -> None:
    if is_expired(state, now_ms):
        if state.forks:
            raise StreamGoneError("the stream expired; forks still read its data")
        raise StreamNotFoundError("the stream expired")


def _removal(states: NewestStates, state: StreamState, now_ms: int) -> Record:
    """Soft-delete a stream that has forks. Otherwise delete it, and soft-deleted ancestors that have no other fork."""
    released = _released(states, state.snapshots, now_ms)
    if state.forks:
        return (SoftDeleted(state.id, now_ms), *released)
    events: list[Event] = [Deleted(state.id, now_ms), *released]
    while state.fork is not None:
        state = states.get(state.fork.source_id)
        events.append(ForkReleased(state.id))
        if state.forks > 1 or not state.soft_deleted:
            break
        events.append(Deleted(state.id, now_ms))
    return tuple(events)


def _released(states: NewestStates, snapshots: tuple[Snapshot, ...], now_ms: int) -> Record:
    """The events when a stream does not use snapshots any more. Each is deleted with its last use."""
    events: list[Event] = []
    for snapshot in snapshots:
        events.append(ForkReleased(snapshot.id))
        if states.get(snapshot.id).forks == 1:
            events.append(Deleted(snapshot.id, now_ms))
    return tuple(events)


# Create


def _create(states: NewestStates, existing: StreamState | None, command: Create, messages_max: int) -> Decision:
    swept = _NOTHING
    if existing is not None:
        expired = is_expired(existing, command.now_ms)
        if existing.soft_deleted or (expired and existing.forks):
            raise PathBlockedError("the path is blocked until all forks of the deleted stream are deleted")
        if not expired:
            return Decision(_NOTHING, _matching(existing, command))
        swept = _removal(states, existing, command.now_ms)
    if command.fork is not None:
        created, events = _fork(states, command, command.fork, messages_max)
    else:
        created = _fresh(command, messages_max)
        events = (created,)
    state = evolve(None, created)
    if state is None:
        raise RuntimeError("evolve returned no state for a created stream")
    return Decision(swept + events, _create_reply(state, existed=False))


def _create_reply(state: StreamState, *, existed: bool) -> Reply:
    return Reply(
        tail=state.offset(state.tail),
        content_type=state.content_type,
        closed=state.closed,
        existed=existed,
        last_seqno=state.last_seqno,
        first=state.offset(state.begin),
        first_seqno=first_seqno(state.snapshots, state.trimmed_seqno),
        retention=state.retention,
    )


def _matching(existing: StreamState, command: Create) -> Reply:
    """The reply to a create if the stream exists with the same configuration."""
    for name, matches in (
        ("kind", command.kind is None or command.kind is existing.kind),
        # Before what a fork has from its source if the command does not name it.
        (f"source: {_fork_text(existing.fork, command.fork)}", _fork_matches(existing.fork, command.fork)),
        (f"content type: {existing.content_type}", _content_type_matches(existing, command)),
        ("time-to-live or expiry", _expiry_matches(existing, command)),
        ("closure", existing.closed == command.closed),
        ("retention", command.retention in (None, existing.retention or KEEP_ALL)),
        (f"source: {_source_text(existing)}", (existing.keeper is None) == (command.keeper is None)),
    ):
        if not matches:
            raise ConfigurationError(f"a stream exists at this path with a different {name}")
    return _create_reply(existing, existed=True)


def _source_text(existing: StreamState) -> str:
    return "it is no view" if existing.keeper is None else f"it is a view of {existing.keeper.source}"


def _fork_text(existing: Fork | None, request: ForkRequest | None) -> str:
    if existing is None:
        return "it is no fork"
    same_source = request is not None and request.source == existing.source_path
    return f"it is a fork of {existing.source_path}{' at another offset' if same_source else ''}"


def _content_type_matches(existing: StreamState, command: Create) -> bool:
    if command.content_type is None and existing.fork is not None and command.fork is not None:
        return True
    if command.kind is not None:  # for tables the parameters (schema and version) are compared too
        return command.content_type == existing.content_type
    return same_type(command.content_type or DEFAULT_CONTENT_TYPE, existing.content_type)


def _expiry_matches(existing: StreamState, command: Create) -> bool:
    if command.ttl_s is None and command.expires_ms is None and existing.fork and existing.fork.inherits_expiry:
        return True
    return command.ttl_s == existing.ttl_s and command.expires_ms == existing.expires_ms


def _fork_matches(existing: Fork | None, request: ForkRequest | None) -> bool:
    if existing is None or request is None:
        return existing is None and request is None
    return (
        existing.source_path == request.source
        and existing.sub_offset == request.sub_offset
        and (
            request.offset in (None, existing.offset) or (existing.offset.position == 0 and request.offset == BEGINNING)
        )
    )


def _fresh(command: Create, messages_max: int) -> Created:
    content_type = command.content_type or DEFAULT_CONTENT_TYPE
    kind = kind_of(content_type) if command.kind is None else command.kind
    data, messages = _kept(kind, command, messages_max, 0, command.now_ms)
    retention = _first_retention(kind, command)
    return Created(
        id=command.stream_id,
        path=command.path,
        content_type=content_type,
        kind=kind,
        at_ms=command.now_ms,
        ttl_s=command.ttl_s,
        expires_ms=command.expires_ms,
        closed=command.closed,
        data=data,
        owner=command.owner,
        keeper=command.keeper,
        retention=retention,
        messages=messages if retention is not None else 0,
    )


def _first_retention(kind: ContentKind, command: Create) -> Retention | None:
    """The retention of a new stream. A default that is to compact does not apply to what cannot be compacted."""
    retention = command.retention
    if retention is None:
        retention = command.default_retention or KEEP_ALL
        if kind not in _COMPACTABLE:
            retention = retention.changed((("compact", False), ("compact_after_s", None)))
    _check_retention(kind, retention)
    return None if retention == KEEP_ALL else retention


_COMPACTABLE = (ContentKind.JSON, ContentKind.ROWS, ContentKind.MIRROR)


def _check_retention(kind: ContentKind, retention: Retention) -> None:
    if retention.compact and kind not in _COMPACTABLE:
        raise InvalidRetentionError("only JSON streams of state events and tables can be compacted; this is neither")
    if retention.compact_after_s is not None and not retention.compact:
        raise InvalidRetentionError("a time after which to compact needs compaction, which is off; turn it on as well")


def _kept(
    kind: ContentKind, command: Create | Append, messages_max: int, last_seqno: int = 0, at_ms: int = 0
) -> tuple[bytes, int]:
    """The bytes to store for the body of a command, and how many messages these are. `_append_rows` handles appends to
    tables."""
    if kind >= ROWS and command.body:
        data = row_framing.stored(kind, command.body, last_seqno, at_ms)[0]
        return data, data.count(b"\n")
    if not command.body or kind is not _JSON:
        return command.body, 1 if command.body else 0
    if command.framed is None:
        return json_framing.framed(command.body, messages_max, may_be_empty=type(command) is Create)
    if command.framed.refusal is not None:
        raise command.framed.refusal
    return command.framed.data, command.framed.messages


def _fork(states: NewestStates, command: Create, request: ForkRequest, messages_max: int) -> tuple[Created, Record]:
    source = fork_source(states, request, command.now_ms)
    if command.content_type is not None and not same_type(command.content_type, source.content_type):
        raise ContentTypeError(f"the source is {source.content_type}; a fork cannot be {command.content_type}")
    if source.kind >= ROWS and command.content_type not in (None, source.content_type):
        raise ContentTypeError(f"the source is {source.content_type}; a fork cannot be {command.content_type}")
    if (source.kind if source.kind >= ROWS else None) is not command.kind:
        raise InvalidForkError("a fork must be of the same kind as its source: a stream, a table or a mirror")
    position = fork_anchor(source, request, states.timeline)
    anchor = max(position, source.first)
    if position >= 0:
        source.names.check_leads(source.first, anchor)
    names = source.names.inherited(anchor + _sub_offset_bytes(request))
    if position < 0:  # it inherits nothing
        names = msgspec.structs.replace(names, snapshots=(), severed=0)
    if source.depth >= limits.FORK_DEPTH_MAX:
        raise InvalidForkError(f"a chain of forks has at most {limits.FORK_DEPTH_MAX} streams")
    inherits_expiry = command.ttl_s is None and command.expires_ms is None
    at_ms = max(command.now_ms, source.appended_ms)  # times never decrease within a stream
    last_seqno = source.last_seqno if request.offset is None else max(request.last_seqno, source.trimmed_seqno)
    data, messages = _kept(source.kind, command, messages_max, last_seqno, at_ms)
    retention = _first_retention(source.kind, command)
    created = Created(
        id=command.stream_id,
        path=command.path,
        content_type=command.content_type or source.content_type,
        kind=source.kind,
        at_ms=at_ms,
        ttl_s=source.ttl_s if inherits_expiry else command.ttl_s,
        expires_ms=source.expires_ms if inherits_expiry else command.expires_ms,
        closed=command.closed,
        fork=Fork(
            source_id=source.id,
            source_path=source.path,
            offset=BEGINNING if anchor and request.offset == BEGINNING else source.offset(anchor),
            sub_offset=request.sub_offset,
            inherits_expiry=inherits_expiry,
            depth=source.depth + 1,
        ),
        lineage=names.lineage,
        timelines=names.timelines,
        data=data,
        last_seqno=last_seqno,
        owner=command.owner,
        first=min(source.first, names.lineage[-1].end),
        trimmed_seqno=source.trimmed_seqno,
        retention=retention,
        messages=messages if retention is not None else 0,
        snapshots=names.snapshots,
        severed=names.severed,
    )
    used = [ForkAdded(one.id, states.get(one.id).tail) for one in names.snapshots]
    return created, (ForkAdded(source.id, names.lineage[-1].end), created, *used)


def fork_source(states: NewestStates, request: ForkRequest, now_ms: int) -> StreamState:
    try:
        return live(states.at(request.source), now_ms)
    except StreamGoneError:
        raise SourceGoneError("the source was deleted") from None
    except StreamNotFoundError:
        raise StreamNotFoundError(f"no stream to fork at {request.source}") from None


def fork_anchor(source: StreamState, request: ForkRequest, timeline: int) -> int:
    """The position in the source at which the fork begins, before the sub-offset. If the source begins with a snapshot,
    a fork at its beginning inherits nothing, and there can be none inside the snapshot."""
    position = source.names.resolve(source.tail, request.offset, timeline, source.first)
    if position < 0 and (position != source.begin or request.sub_offset):
        raise InvalidForkError(
            "the offset is inside a snapshot, which compaction has made; fork at -1, which inherits nothing, or at an "
            "offset after the snapshot"
        )
    return position


def prefix_bytes(kind: ContentKind, record: bytes, sub_offset: int) -> int | None:
    """The length of a record's first `sub_offset` messages (JSON) or bytes, which a fork inherits; None if the record
    is shorter."""
    if kind is ContentKind.JSON:
        return json_framing.message_end(record, sub_offset)
    return sub_offset if sub_offset <= len(record) else None


def _sub_offset_bytes(request: ForkRequest) -> int:
    if request.sub_offset == 0:
        return 0
    if request.prefix_bytes is None:
        raise InvalidForkError(f"the record at the fork offset ends before sub-offset {request.sub_offset}")
    return request.prefix_bytes


# Append and close


def _append(timeline: int, state: StreamState, command: Append, messages_max: int, producers_max: int) -> Decision:
    """Check, in this order: incarnation, keeper, closed, content type, producer, sequence, body, tail.

    The tail comes last so that a duplicate is recognised after the tail has moved.
    """
    producer = command.producer
    if command.stream_id is not None or state.keeper is not None:
        _check_target(state, command)
    if not command.body and not command.close:
        raise EmptyBodyError("an append needs a body; only a close may have none")
    if state.closed:
        return Decision(_NOTHING, _after_close(state, command))
    if command.body and command.content_type != state.content_type:
        _check_content_type(state, command.content_type)
    if producer is not None or command.seq is not None or command.only_repeats:
        reply = _in_order(state, command, producers_max)
        if reply is not None:
            return Decision(_NOTHING, reply)
    at_ms = max(state.appended_ms, command.now_ms)
    if state.kind >= ROWS:
        return _append_rows(timeline, state, command, at_ms)
    if state.kind is _JSON and command.framed is None and command.body:
        data, messages = json_framing.framed(command.body, messages_max)  # without `_kept`, for speed
    else:
        data, messages = _kept(state.kind, command, messages_max)
    if command.ends is not None:
        check_end(state, command.ends)
    counted = messages if state.retention is not None else 0
    appended = Appended(state.id, state.tail, at_ms, data, producer, command.seq, command.close, counted)
    if timeline <= state.id:  # there is no other timeline
        tail = state.offset(state.tail + len(data))
        return Decision((appended,), Reply(tail, closed=command.close, producer=producer))
    events, tail = _in_timeline(timeline, state, appended)
    return Decision(events, Reply(tail, closed=command.close, producer=producer))


def _check_target(state: StreamState, command: Append) -> None:
    """Refuse an append to another incarnation; to a view, unless it is the view's own; and of a view to anything else,
    which names the incarnation too."""
    keeper = state.keeper
    if command.stream_id not in (None, state.id):
        raise StreamGoneError("the stream was deleted, and another one was created at its path")
    if command.keeper is not None and (keeper is None or keeper.document != command.keeper):
        raise StreamGoneError("the view was deleted, and something else was created at its path")
    if keeper is not None and not any(document.key == keeper.document for document in command.documents):
        raise ReadOnlyError(f"this is a view of {keeper.source}, which the server keeps current; append there")


def _in_timeline(timeline: int, state: StreamState, appended: Appended) -> tuple[Record, Offset]:
    """The events of an append, and the tail after it. The first data in the current timeline begins it."""
    data = appended.data
    if timeline <= state.id or not data or timeline <= state.timeline:
        return (appended,), state.offset(state.tail + len(data))
    return (TimelineBegun(state.id, timeline), appended), Offset(timeline, state.tail + len(data))


def _in_order(state: StreamState, command: Append, producers_max: int) -> Reply | None:
    """Check the producer, then the sequence. The reply if nothing is to be stored: to a duplicate, or to a command that
    must be one."""
    if command.producer is not None:
        repeated = _repeated(state, command.producer, command.now_ms, producers_max)
        if repeated is not None:
            return repeated
    if command.seq is not None and state.seq is not None and command.seq <= state.seq:
        raise SequenceRegressionError(f"sequence {command.seq!r} does not come after {state.seq!r}")
    return Reply(state.offset(state.tail), last_seqno=state.last_seqno) if command.only_repeats else None


def _repeated(state: StreamState, producer: ProducerTuple, now_ms: int, producers_max: int) -> Reply | None:
    """The reply to a duplicate; None for a request that the producer table accepts."""
    known = producers.known(state.producers, state.expired_producers, producer, now_ms)
    if producers.is_duplicate(known, producer) and known is not None:
        highest = ProducerTuple(producer.id, known.epoch, known.seq)
        return Reply(state.offset(state.tail), duplicate=True, producer=highest, last_seqno=state.last_seqno)
    if known is None:
        producers.check_room(state.producers, now_ms, producers_max)
    return None


def _append_rows(timeline: int, state: StreamState, command: Append, at_ms: int) -> Decision:
    """The same for a table. This assigns the SeqNos of its rows."""
    data, last_seqno = b"", state.last_seqno
    if command.last_seqno not in (None, last_seqno):
        raise SeqNoRegressionError(f"the table ends with row {last_seqno}, expected row {command.last_seqno}")
    if command.body:
        data, last_seqno = row_framing.stored(state.kind, command.body, last_seqno, at_ms)
    check_end(state, command.ends)
    counted = data.count(b"\n") if state.retention is not None else 0
    appended = Appended(state.id, state.tail, at_ms, data, command.producer, command.seq, command.close, counted)
    events, tail = _in_timeline(timeline, state, appended)
    return Decision(events, Reply(tail, closed=command.close, producer=command.producer, last_seqno=last_seqno))


# Retention


def _retain(state: StreamState, command: Retain) -> Decision:
    _check_same(state, command)
    before = state.retention or KEEP_ALL
    retention = before.changed(command.changes)
    _check_retention(state.kind, retention)
    counted = Counted()
    if retention.messages is not None:
        counted = state.counted if before.messages is not None and state.counted.marks else command.counted
    kept = None if retention == KEEP_ALL else retention
    if kept == state.retention:
        return Decision(_NOTHING, _create_reply(state, existed=True))
    reply = _create_reply(state, existed=True)
    return Decision((Retained(state.id, kept, counted),), msgspec.structs.replace(reply, retention=kept))


def _check_same(state: StreamState, command: Retain | Trim | Compact) -> None:
    """Refuse a command with positions of another stream."""
    if command.stream_id != state.id:
        raise StreamGoneError("the stream was deleted, and another one was created at its path")


def _trim(states: NewestStates, state: StreamState, command: Trim) -> Decision:
    """Move the beginning of a stream. A trim at the present beginning corrects what is known of it, and may drop a
    snapshot."""
    _check_same(state, command)
    reply = _create_reply(state, existed=True)
    if command.retention not in (None, state.retention):
        return Decision(_NOTHING, reply)
    position = command.position
    dropped = dropped_by(state.snapshots, position, keeps_snapshot=command.keeps_snapshot)
    is_known = command.first_ms == state.first_ms and command.last <= state.last and not dropped
    if position < state.first or (position == state.first and is_known):
        return Decision(_NOTHING, reply)
    trimmed = Trimmed(
        state.id,
        position,
        command.first_ms,
        command.last,
        max(state.trimmed_seqno, command.seqno),
        max(0, position - max(state.start, state.first)),
        command.keeps_snapshot,
    )
    kept = state.snapshots[len(dropped) :]
    first = state.offset(state.begin if kept else position)
    seqno = first_seqno(kept, trimmed.seqno)
    released = _released(states, dropped, command.now_ms)
    return Decision((trimmed, *released), msgspec.structs.replace(reply, first=first, first_seqno=seqno))


def _compact(states: NewestStates, state: StreamState, command: Compact) -> Decision:
    """Let a stream use another one as its snapshot, which counts and hides it as a deleted source of a fork."""
    _check_same(state, command)
    hidden = live(states.at(command.snapshot_path), command.now_ms)
    newest = state.snapshots[-1] if state.snapshots else None
    if command.newest != (0 if newest is None else newest.id):
        raise ConflictError("the stream has another snapshot than the one that this one was made from")
    if newest is None and command.first != state.first:  # otherwise what was trimmed would be there again
        raise ConflictError("the stream was trimmed after the snapshot was made")
    after = max(state.first, 0 if newest is None else newest.next)
    if not after < command.next <= state.tail:
        raise ConflictError(f"a snapshot up to {command.next} must be after {after} and not after {state.tail}")
    if not hidden.tail:
        raise ConflictError("a snapshot cannot be empty")
    if not state.names.can_have(hidden.id):
        raise ConflictError(
            f"the id {state.id} of the stream does not allow offsets before its own, so it cannot be compacted; "
            "copy it to a new stream"
        )
    start = state.names.snapshots_end
    snapshot = Snapshot(
        id=hidden.id,
        start=start,
        end=start + hidden.tail,
        next=command.next,
        at_ms=command.now_ms,
        through_ms=command.through_ms,
        seqno=command.seqno,
        complete_since=command.complete_since,
    )
    events: Record = (
        ForkAdded(hidden.id, hidden.tail),
        SoftDeleted(hidden.id, command.now_ms),
        Compacted(state.id, snapshot),
    )
    return Decision(events, _create_reply(state, existed=True))


def check_end(state: StreamState, ends: tuple[Offset, ...] | None) -> None:
    """Refuse a command unless the stream ends at one of these. None allows any tail."""
    if ends is None:
        return
    tail, is_table = state.offset(state.tail), state.kind >= ROWS
    position = state.last_seqno if is_table else state.tail
    # The id of an entity tag is never below that of the stream; that of an inherited offset is.
    ids = (0, tail.id, max(state.id, tail.id))
    if not any(end.position == position and end.id in ids for end in ends):
        last_seqno = state.last_seqno if is_table else None
        raise TailMovedError(
            f"the {'table ends with row' if is_table else 'stream ends at position'} {position}",
            tail=(tail.id, tail.position),
            last_seqno=last_seqno,
        )


def _check_content_type(state: StreamState, content_type: str | None) -> None:
    if content_type is None:
        raise MissingContentTypeError("a content type is required with a body")
    if not same_type(content_type, state.content_type):
        raise ContentTypeError(f"the stream is {state.content_type}, the body is {content_type}")


def _after_close(state: StreamState, command: Append) -> Reply:
    """On a closed stream, only a retry of the append that closed it and a close without data succeed."""
    tail = state.offset(state.tail)
    producer = command.producer
    if producer is not None and producer == state.closed_by:
        return Reply(tail, closed=True, duplicate=True, producer=producer, last_seqno=state.last_seqno)
    if producer is None and not command.body:
        return Reply(tail, closed=True, duplicate=True, last_seqno=state.last_seqno)
    raise StreamClosedError("the stream is closed", tail=(tail.id, tail.position))
