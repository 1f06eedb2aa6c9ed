"""Events: what changed, one stream or one document each.

The events of one command form a record, which becomes durable whole or not at all. Times are milliseconds since
1970, positions are bytes from the stream's beginning.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headwater.log.content import ContentKind
from headwater.log.offsets import Offset, Span
from headwater.log.producers import ProducerTuple


class Fork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a fork came from."""

    source_id: int
    source_path: str
    offset: Offset  # in the source, before the sub-offset
    sub_offset: int
    inherits_expiry: bool
    depth: int = 1  # how many forks lie between this stream and one that is not a fork


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
    last_seqno: int = 0  # of the fork of a table: that of the last row it inherits


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    id: int
    position: int  # where the data begins: the tail it was decided on
    at_ms: int
    data: bytes
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False


class Touched(msgspec.Struct, frozen=True, array_like=True, tag="touched"):
    """The stream was used, which renews its time-to-live."""

    id: int
    at_ms: int


class ForkAdded(msgspec.Struct, frozen=True, array_like=True, tag="fork-added"):
    id: int


class ForkReleased(msgspec.Struct, frozen=True, array_like=True, tag="fork-released"):
    id: int


class SoftDeleted(msgspec.Struct, frozen=True, array_like=True, tag="soft-deleted"):
    """Deleted for everyone but the forks that still read it."""

    id: int
    at_ms: int = 0  # unknown in what earlier versions wrote


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="deleted"):
    id: int
    at_ms: int = 0  # unknown in what earlier versions wrote


class DocumentWritten(msgspec.Struct, frozen=True, array_like=True, tag="document-written"):
    key: str
    data: bytes


class DocumentDeleted(msgspec.Struct, frozen=True, array_like=True, tag="document-deleted"):
    key: str


StreamEvent: TypeAlias = Created | Appended | Touched | ForkAdded | ForkReleased | SoftDeleted | Deleted
DocumentEvent: TypeAlias = DocumentWritten | DocumentDeleted
Event: TypeAlias = StreamEvent | DocumentEvent
Record: TypeAlias = tuple[Event, ...]

DOCUMENT_EVENTS = (DocumentWritten, DocumentDeleted)


def time_of(event: Event) -> int:
    """When an event was decided; 0 where it does not say."""
    return getattr(event, "at_ms", 0)
