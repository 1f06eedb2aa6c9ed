"""The engine's messages: what an edge asks and learns. Plain values, fit to be sent to another process.

Commands and their replies are the log's (`headwater.log.commands`).
"""

from __future__ import annotations

import enum

import msgspec

from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset, Span, offset_at
from headwater.store.pieces import RecordEnd


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """A stream as readers see it: what is durable."""

    id: int
    path: str
    content_type: str
    kind: ContentKind
    created_ms: int
    ttl_s: int | None
    expires_ms: int | None
    deadline_ms: int | None  # when it expires if nothing renews it
    lineage: tuple[Span, ...]
    tail: int
    closed: bool
    last_seqno: int = 0  # of a table

    def offset(self, position: int) -> Offset:
        return offset_at(self.id, self.lineage, position)


class Read(msgspec.Struct, frozen=True):
    """Whole records from an offset on; an offset of None is the tail."""

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None  # return nothing at or past it
    bytes_max: int = 1
    wait_s: float = 0.0  # how long to wait at the tail for something new


class ReadMore(msgspec.Struct, frozen=True):
    """Whole records of a stream that is being followed, from a position on."""

    stream_id: int
    start: int
    until: int | None = None
    bytes_max: int = 1


class ReadReply(msgspec.Struct, frozen=True, gc=False):
    stream: StreamInfo
    start: int
    next: int  # where the next read begins
    until: int | None
    data: bytes
    held: object = None  # large data counts for as long as this is referred to; it means nothing to another process

    @property
    def at_tail(self) -> bool:
        return self.next == self.stream.tail


class FindRecords(msgspec.Struct, frozen=True):
    """The records between two offsets, without their bytes; `until` None is the tail.

    With `at_ms`, those appended at or after that moment.
    """

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None
    at_ms: int | None = None
    limit: int = 1


class RecordsReply(msgspec.Struct, frozen=True):
    stream: StreamInfo
    start: int
    end: int
    records: tuple[RecordEnd, ...]


class FindSplits(msgspec.Struct, frozen=True):
    """Positions where a range can be cut: into `parts` of about equal size, or into parts of at most `step_bytes`
    unless one record is larger. `until` None is the tail."""

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None
    parts: int = 1
    step_bytes: int = 0
    limit: int = 1


class SplitsReply(msgspec.Struct, frozen=True):
    stream: StreamInfo
    start: int
    end: int
    splits: tuple[int, ...]


class FindRow(msgspec.Struct, frozen=True):
    """Where the rows of a table begin that have a SeqNo larger than `since_id`, or the last rows if it is negative."""

    path: str
    since_id: int = 0


class RowPosition(msgspec.Struct, frozen=True, gc=False):
    """Where a row begins. A read begins where a record does: `skip` bytes of it come before the row."""

    record: int
    skip: int = 0

    @property
    def position(self) -> int:
        return self.record + self.skip


class RowReply(msgspec.Struct, frozen=True):
    table: StreamInfo
    start: RowPosition
    since_id: int  # that names the same rows, not negative


class StreamPage(msgspec.Struct, frozen=True):
    streams: tuple[StreamInfo, ...]
    next_after: str | None  # where the next page goes on


class Update(msgspec.Struct, frozen=True, gc=False):
    """One durable change of a stream, the same object for all its live readers."""

    stream_id: int
    kind: ContentKind
    start: int
    end: int
    tail: Offset
    data: bytes
    closed: bool
    now_ms: int


class Ended(enum.Enum):
    """Why a live reader gets no more updates."""

    DELETED = "deleted"
    DRAINING = "draining"
