"""Events: each is a change of one stream or one document.

The events of one command form a record, which is stored atomically. Times are milliseconds since 1970, positions are
bytes from the beginning of the stream.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headwater.log.content import ContentKind
from headwater.log.offsets import Offset, Snapshot, Span, Timeline
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Counted, Retention


class Fork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The source of a fork."""

    source_id: int
    source_path: str
    offset: Offset  # in the source, before the sub-offset
    sub_offset: int
    inherits_expiry: bool
    depth: int = 1  # number of ancestors


class Keeper(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What keeps a view current: every append to the view writes this document in the same record."""

    document: str  # its key
    source: str  # what clients append to instead, as errors name it


class Created(msgspec.Struct, frozen=True, array_like=True, tag="created", kw_only=True):
    id: int
    path: str
    content_type: str
    kind: ContentKind
    at_ms: int
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    fork: Fork | None = None
    lineage: tuple[Span, ...] = ()
    data: bytes = b""
    last_seqno: int = 0  # of a fork of a table: the last inherited row
    timelines: tuple[Timeline, ...] = ()  # of a fork: those of the inherited bytes
    owner: str = ""  # the name of the token that created it, for quotas; empty: none
    keeper: Keeper | None = None  # of a view
    first: int = 0  # of a fork: where its source began
    trimmed_seqno: int = 0  # of a fork of a table: the last row that was trimmed from its source
    retention: Retention | None = None
    messages: int = 0  # as in `Appended`
    snapshots: tuple[Snapshot, ...] = ()  # of a fork: the one of its source that it begins with, if any
    severed: int = 0  # of a fork: what leads to positions before this one is not there


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    id: int
    position: int  # of the data: the tail before the append
    at_ms: int
    data: bytes
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False
    messages: int = 0  # how many the data has, if the retention of the stream counts them


class TimelineBegun(msgspec.Struct, frozen=True, array_like=True, tag="timeline-begun"):
    """Data that is appended from now on belongs to another timeline, because the store was restored to an earlier
    state. This is in the same record as the first append after that."""

    id: int
    timeline: int


class Touched(msgspec.Struct, frozen=True, array_like=True, tag="touched"):
    """The stream was read, which renews its time-to-live."""

    id: int
    at_ms: int


class Retained(msgspec.Struct, frozen=True, array_like=True, tag="retained"):
    """The retention of the stream was changed. `counted` has the messages that are there, if they are to be counted."""

    id: int
    retention: Retention | None
    counted: Counted = Counted()


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag="trimmed"):
    """The stream begins at a later record."""

    id: int
    position: int  # of the first record that is there; the tail if there is none
    first_ms: int = 0  # when that record was appended; 0 if there is none
    last: int = 0  # the position of the last record
    seqno: int = 0  # of a table: its last row that was trimmed
    size_bytes: int = 0  # how many of its own bytes were trimmed
    keeps_snapshot: bool = False  # the one after which reading continues at this position


class Compacted(msgspec.Struct, frozen=True, array_like=True, tag="compacted"):
    """Readers get a snapshot in place of the front of the stream."""

    id: int
    snapshot: Snapshot


class ForkAdded(msgspec.Struct, frozen=True, array_like=True, tag="fork-added"):
    id: int
    end: int = 0  # up to this position, the fork reads the bytes of the stream


class ForkReleased(msgspec.Struct, frozen=True, array_like=True, tag="fork-released"):
    id: int


class SoftDeleted(msgspec.Struct, frozen=True, array_like=True, tag="soft-deleted"):
    """The stream was deleted, but its data is kept for its forks."""

    id: int
    at_ms: int = 0


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="deleted"):
    id: int
    at_ms: int = 0


class DocumentWritten(msgspec.Struct, frozen=True, array_like=True, tag="document-written"):
    key: str
    data: bytes


class DocumentDeleted(msgspec.Struct, frozen=True, array_like=True, tag="document-deleted"):
    key: str


StreamEvent: TypeAlias = (
    Created
    | Appended
    | TimelineBegun
    | Touched
    | Retained
    | Trimmed
    | Compacted
    | ForkAdded
    | ForkReleased
    | SoftDeleted
    | Deleted
)
DocumentEvent: TypeAlias = DocumentWritten | DocumentDeleted
Event: TypeAlias = StreamEvent | DocumentEvent
Record: TypeAlias = tuple[Event, ...]

DOCUMENT_EVENTS = (DocumentWritten, DocumentDeleted)
