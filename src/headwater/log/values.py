"""The values that every layer shares: a stream's state and the events that change it.

An event concerns one stream. The events of one request form a record, which becomes durable whole or not at
all. Times are milliseconds since 1970, positions are bytes from the stream's beginning.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headwater.log.content import ContentKind
from headwater.log.producers import ProducerTuple


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes (start, end] of a fork that an ancestor holds."""

    id: int
    start: int
    end: int


class Fork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a fork came from, as asked for and as resolved."""

    source_id: int
    source_path: str
    offset: str  # the offset that diverges, before the sub-offset
    sub_offset: int
    inherits_expiry: bool


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


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    id: int
    position: int  # where the data begins: the tail it was decided on
    at_ms: int
    data: bytes
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False


class Touched(msgspec.Struct, frozen=True, array_like=True, tag="touched"):
    id: int
    at_ms: int


class ForkAdded(msgspec.Struct, frozen=True, array_like=True, tag="fork-added"):
    id: int


class ForkReleased(msgspec.Struct, frozen=True, array_like=True, tag="fork-released"):
    id: int


class SoftDeleted(msgspec.Struct, frozen=True, array_like=True, tag="soft-deleted"):
    """Gone for everyone but the forks that still read it."""

    id: int


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="deleted"):
    id: int


Event: TypeAlias = Created | Appended | Touched | ForkAdded | ForkReleased | SoftDeleted | Deleted
Record: TypeAlias = tuple[Event, ...]


class StreamState(msgspec.Struct, kw_only=True):
    """All that decides what a request does to a stream; the bytes themselves are in the store.

    `id` is the incarnation: a stream made again at the same path has another, and offsets carry it.
    """

    id: int
    path: str
    content_type: str
    kind: ContentKind
    created_ms: int
    accessed_ms: int
    tail: int
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    closed_by: ProducerTuple | None = None
    seq: str | None = None
    producers: dict[str, tuple[int, int]] = {}  # id → epoch, last accepted sequence
    fork: Fork | None = None
    lineage: tuple[Span, ...] = ()  # inherited bytes, oldest first
    forks: int = 0  # streams that were forked from this one and still exist
    soft_deleted: bool = False
    version: int = 1  # events so far, by which a shared store can tell that someone else wrote meanwhile

    @property
    def start(self) -> int:
        """Where the stream's own bytes begin; what is before is inherited."""
        return self.lineage[-1].end if self.lineage else 0

    @property
    def deadline_ms(self) -> int | None:
        """When the stream expires if nothing renews it."""
        if self.ttl_s is not None:
            return self.accessed_ms + self.ttl_s * 1000
        return self.expires_ms
