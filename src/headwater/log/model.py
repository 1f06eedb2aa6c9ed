"""The stream state machine: `decide` what a command does, `evolve` the state by what was decided.

`decide(view, command)` looks at streams through a view and answers with the events to record and the reply to
give, or raises the error to report. It changes nothing. `evolve(state, event)` applies one event; it owns the
state it is given and may return the same object. Replaying every event from nothing gives the same states.

What a request finds at a path:

    no stream                                  absent
    expired, no forks                          absent, and swept away by whoever comes next
    deleted or expired while forks read it     gone
    otherwise                                  live
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from headwater import limits
from headwater.errors import (
    ConfigurationError,
    ContentTypeError,
    EmptyBodyError,
    InvalidForkError,
    InvalidHeaderError,
    PathBlockedError,
    SequenceRegressionError,
    SourceGoneError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log import json_framing, producers
from headwater.log.content import DEFAULT_CONTENT_TYPE, ContentKind, kind_of, same_type
from headwater.log.producers import ProducerTuple
from headwater.log.values import (
    Appended,
    Created,
    Deleted,
    Event,
    Fork,
    ForkAdded,
    ForkReleased,
    Record,
    SoftDeleted,
    StreamState,
    Touched,
)
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import NOW, inherited, offset_at, resolve


class View(Protocol):
    """The streams that a decision may look at."""

    def at(self, path: str) -> StreamState | None: ...

    def get(self, stream_id: int) -> StreamState: ...


class ForkRequest(msgspec.Struct, frozen=True):
    source: str
    offset: str | None = None
    sub_offset: int = 0
    record: bytes = b""  # the source's record at the offset, where a sub-offset looks into it


class Create(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    stream_id: int
    now_ms: int
    content_type: str | None = None
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    body: bytes = b""
    fork: ForkRequest | None = None


class Append(msgspec.Struct, frozen=True):
    path: str
    now_ms: int
    body: bytes
    content_type: str | None = None
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False


class Delete(msgspec.Struct, frozen=True):
    path: str
    now_ms: int


class Expire(msgspec.Struct, frozen=True):
    """Remove the stream at a path if its time has come."""

    path: str
    now_ms: int


Command: TypeAlias = Create | Append | Delete | Expire


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What the requester learns; the events say what changed."""

    next_offset: str = ""
    content_type: str = ""
    closed: bool = False
    existed: bool = False  # of a create: the stream was there already, as asked for
    duplicate: bool = False  # of an append: a retry of one that was accepted before
    producer: ProducerTuple | None = None  # the highest accepted tuple of the requester


class Decision(msgspec.Struct, frozen=True, gc=False):
    events: Record
    reply: Reply


_NOTHING: Record = ()


def decide(view: View, command: Command) -> Decision:
    state = view.at(command.path)
    if isinstance(command, Append):
        return _append(live(state, command.now_ms), command)
    if isinstance(command, Create):
        return _create(view, state, command)
    if isinstance(command, Delete):
        return Decision(_removal(view, live(state, command.now_ms)), Reply())
    if state is None or state.soft_deleted or not is_expired(state, command.now_ms):
        return Decision(_NOTHING, Reply())
    return Decision(_removal(view, state), Reply())


def is_expired(state: StreamState, now_ms: int) -> bool:
    deadline_ms = state.deadline_ms
    return deadline_ms is not None and now_ms >= deadline_ms


def live(state: StreamState | None, now_ms: int) -> StreamState:
    """The state if the stream can be used; what a request finds otherwise is raised."""
    if state is None:
        raise StreamNotFoundError("no stream at this path")
    if state.soft_deleted:
        raise StreamGoneError("the stream was deleted; forks still read its data")
    if is_expired(state, now_ms):
        if state.forks:
            raise StreamGoneError("the stream expired; forks still read its data")
        raise StreamNotFoundError("the stream expired")
    return state


def _removal(view: View, state: StreamState) -> Record:
    """Soft-delete what forks still read; otherwise delete, and whatever only this stream kept alive."""
    if state.forks:
        return (SoftDeleted(state.id),)
    events: list[Event] = [Deleted(state.id)]
    while state.fork is not None:
        state = view.get(state.fork.source_id)
        events.append(ForkReleased(state.id))
        if state.forks > 1 or not state.soft_deleted:
            break
        events.append(Deleted(state.id))
    return tuple(events)


# Create


def _create(view: View, existing: StreamState | None, command: Create) -> Decision:
    swept = _NOTHING
    if existing is not None:
        expired = is_expired(existing, command.now_ms)
        if existing.soft_deleted or (expired and existing.forks):
            raise PathBlockedError("the path is free again when the last fork of the deleted stream is gone")
        if not expired:
            return Decision(_NOTHING, _matching(existing, command))
        swept = _removal(view, existing)
    if command.fork is not None:
        created, events = _fork(view, command, command.fork)
    else:
        created = _fresh(command)
        events = (created,)
    state = evolve(None, created)
    if state is None:
        raise RuntimeError("a created stream has a state")
    return Decision(swept + events, _create_reply(state, existed=False))


def _create_reply(state: StreamState, *, existed: bool) -> Reply:
    return Reply(
        next_offset=offset_at(state, state.tail),
        content_type=state.content_type,
        closed=state.closed,
        existed=existed,
    )


def _matching(existing: StreamState, command: Create) -> Reply:
    """The reply to a create that finds the stream as it asks for it."""
    for name, matches in (
        ("content type", _content_type_matches(existing, command)),
        ("time-to-live or expiry", _expiry_matches(existing, command)),
        ("closure", existing.closed == command.closed),
        ("fork", _fork_matches(existing.fork, command.fork)),
    ):
        if not matches:
            raise ConfigurationError(f"a stream exists at this path with a different {name}")
    return _create_reply(existing, existed=True)


def _content_type_matches(existing: StreamState, command: Create) -> bool:
    if command.content_type is None and existing.fork is not None and command.fork is not None:
        return True
    return same_type(command.content_type or DEFAULT_CONTENT_TYPE, existing.content_type)


def _expiry_matches(existing: StreamState, command: Create) -> bool:
    if command.ttl_s is None and command.expires_ms is None and existing.fork and existing.fork.inherits_expiry:
        return True
    return command.ttl_s == existing.ttl_s and command.expires_ms == existing.expires_ms


def _fork_matches(existing: Fork | None, asked: ForkRequest | None) -> bool:
    if existing is None or asked is None:
        return existing is None and asked is None
    return (
        existing.source_path == asked.source
        and existing.sub_offset == asked.sub_offset
        and asked.offset in (None, existing.offset)
    )


def _fresh(command: Create) -> Created:
    content_type = command.content_type or DEFAULT_CONTENT_TYPE
    kind = kind_of(content_type)
    return Created(
        id=command.stream_id,
        path=command.path,
        content_type=content_type,
        kind=kind,
        at_ms=command.now_ms,
        ttl_s=command.ttl_s,
        expires_ms=command.expires_ms,
        closed=command.closed,
        data=_initial(kind, command.body),
    )


def _initial(kind: ContentKind, body: bytes) -> bytes:
    if body and kind is ContentKind.JSON:
        return json_framing.stored(body, may_be_empty=True)
    return body


def _fork(view: View, command: Create, request: ForkRequest) -> tuple[Created, Record]:
    source = fork_source(view, request, command.now_ms)
    if command.content_type is not None and not same_type(command.content_type, source.content_type):
        raise ContentTypeError(f"the source is {source.content_type}; a fork cannot be {command.content_type}")
    anchor = fork_anchor(source, request)
    lineage = inherited(source, anchor + _sub_offset_bytes(source.kind, request))
    if len(lineage) > limits.FORK_DEPTH_MAX:
        raise InvalidForkError(f"a chain of forks is at most {limits.FORK_DEPTH_MAX} long")
    inherits_expiry = command.ttl_s is None and command.expires_ms is None
    created = Created(
        id=command.stream_id,
        path=command.path,
        content_type=command.content_type or source.content_type,
        kind=source.kind,
        at_ms=command.now_ms,
        ttl_s=source.ttl_s if inherits_expiry else command.ttl_s,
        expires_ms=source.expires_ms if inherits_expiry else command.expires_ms,
        closed=command.closed,
        fork=Fork(
            source_id=source.id,
            source_path=source.path,
            offset=request.offset or offset_at(source, anchor),
            sub_offset=request.sub_offset,
            inherits_expiry=inherits_expiry,
        ),
        lineage=lineage,
        data=_initial(source.kind, command.body),
    )
    return created, (ForkAdded(source.id), created)


def fork_source(view: View, request: ForkRequest, now_ms: int) -> StreamState:
    try:
        return live(view.at(request.source), now_ms)
    except StreamGoneError:
        raise SourceGoneError("the source was deleted and cannot be forked again") from None
    except StreamNotFoundError:
        raise StreamNotFoundError(f"no stream to fork at {request.source}") from None


def fork_anchor(source: StreamState, request: ForkRequest) -> int:
    """The position in the source that the requested offset names."""
    return resolve(source, request.offset or NOW, source.tail)


def _sub_offset_bytes(kind: ContentKind, request: ForkRequest) -> int:
    """How many bytes past the anchor a fork takes along: messages of a JSON batch, bytes of any other."""
    if request.sub_offset == 0:
        return 0
    if kind is ContentKind.JSON:
        ends = json_framing.message_ends(request.record) if request.record else []
    else:
        ends = range(1, len(request.record) + 1)  # type: ignore[assignment]
    if request.sub_offset > len(ends):
        raise InvalidForkError(f"the record at the fork offset ends before sub-offset {request.sub_offset}")
    return ends[request.sub_offset - 1]


# Append and close


def _append(state: StreamState, command: Append) -> Decision:
    """Closed, then content type, then producer, then Stream-Seq, then the body: the order of precedence."""
    producer = command.producer
    if not command.body and not command.close:
        raise EmptyBodyError("an append needs a body; only a close may come without one")
    if state.closed:
        return Decision(_NOTHING, _after_close(state, command))
    if command.body:
        _check_content_type(state, command.content_type)
    if producer is not None:
        known = state.producers.get(producer.id)
        if producers.is_duplicate(known, producer) and known is not None:
            highest = ProducerTuple(producer.id, *known)
            return Decision(_NOTHING, Reply(offset_at(state, state.tail), duplicate=True, producer=highest))
    if command.seq is not None and state.seq is not None and command.seq <= state.seq:
        raise SequenceRegressionError(f"Stream-Seq {command.seq!r} does not come after {state.seq!r}")
    data = command.body
    if data and state.kind is ContentKind.JSON:
        data = json_framing.stored(data)
    tail = state.tail + len(data)
    return Decision(
        (Appended(state.id, state.tail, command.now_ms, data, producer, command.seq, command.close),),
        Reply(offset_at(state, tail), closed=command.close, producer=producer),
    )


def _check_content_type(state: StreamState, content_type: str | None) -> None:
    if content_type is None:
        raise InvalidHeaderError("Content-Type is required with a body")
    if not same_type(content_type, state.content_type):
        raise ContentTypeError(f"the stream is {state.content_type}, the body is {content_type}")


def _after_close(state: StreamState, command: Append) -> Reply:
    """A closed stream answers the request that closed it, and a close that adds nothing."""
    offset = offset_at(state, state.tail)
    producer = command.producer
    if producer is not None and producer == state.closed_by:
        return Reply(offset, closed=True, duplicate=True, producer=producer)
    if producer is None and not command.body:
        return Reply(offset, closed=True, duplicate=True)
    raise StreamClosedError(
        "no append is possible after the close",
        headers=((headers.CLOSED, "true"), (headers.NEXT_OFFSET, offset)),
    )


# Evolve


def evolve(state: StreamState | None, event: Event) -> StreamState | None:
    """The state after an event; None once the stream is gone."""
    if isinstance(event, Created):
        return _born(event)
    if state is None or state.id != event.id:
        raise ValueError(f"{type(event).__name__} does not apply to {state!r}")
    state.version += 1
    if isinstance(event, Appended):
        _grow(state, event)
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


def _grow(state: StreamState, event: Appended) -> None:
    if event.position != state.tail:
        raise ValueError(f"an append at {event.position} to a stream that ends at {state.tail}")
    state.tail += len(event.data)
    if event.at_ms > state.accessed_ms:
        state.accessed_ms = event.at_ms
    if event.seq is not None:
        state.seq = event.seq
    if event.producer is not None:
        state.producers[event.producer.id] = (event.producer.epoch, event.producer.seq)
    if event.close:
        state.closed = True
        state.closed_by = event.producer


def _born(event: Created) -> StreamState:
    state = StreamState(
        id=event.id,
        path=event.path,
        content_type=event.content_type,
        kind=event.kind,
        created_ms=event.at_ms,
        accessed_ms=event.at_ms,
        tail=0,
        ttl_s=event.ttl_s,
        expires_ms=event.expires_ms,
        closed=event.closed,
        fork=event.fork,
        lineage=event.lineage,
    )
    state.tail = state.start + len(event.data)
    return state
