"""The messages between an edge and the engine: plain values that could be sent to another process.

Commands and their replies are in `headwater.log.commands`.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol, TypeAlias

import msgspec

from headwater.errors import HeadwaterError
from headwater.log.content import ContentKind
from headwater.log.events import Fork
from headwater.log.offsets import BEGINNING, SNAPSHOTS_FIRST, Names, Offset, Span, first_seqno
from headwater.log.producers import ProducerState
from headwater.log.retention import Retention
from headwater.store.pieces import RecordEnd


class VisibleStream(msgspec.Struct, frozen=True, gc=False):
    """A stream as readers see it: only durable data."""

    id: int
    path: str
    content_type: str
    kind: ContentKind
    created_ms: int
    ttl_s: int | None
    expires_ms: int | None
    deadline_ms: int | None  # time of expiry if it is not renewed
    names: Names
    tail: int
    closed: bool
    last_seqno: int = 0  # of a table
    first: int = 0  # position of the first record that is there
    trimmed_seqno: int = 0  # of a table: the last row that was trimmed
    retention: Retention | None = None
    owner: str = ""  # the token that created it
    fork: Fork | None = None  # its source, if it is a fork

    @property
    def begin(self) -> int:
        """The position at which a reader begins: that of a snapshot, or of the first record."""
        return self.names.begin(self.first)

    @property
    def first_offset(self) -> Offset:
        return self.names.at(self.begin)

    @property
    def gone_seqno(self) -> int:
        """Of a table: the last row without a trace. With a snapshot there is none: live rows are in it."""
        return 0 if self.begin < 0 else self.trimmed_seqno

    @property
    def may_have_gaps(self) -> bool:
        """Of a table: whether SeqNos may be left out. Compaction removes rows, and so may the source of a mirror."""
        compacts = self.retention is not None and self.retention.compact
        return self.kind is ContentKind.MIRROR or compacts or bool(self.names.snapshots)

    @property
    def first_seqno(self) -> int:
        """Of a table: a reader that has all rows before this one can continue. Of those before it, a snapshot has only
        what was live."""
        return first_seqno(self.names.snapshots, self.trimmed_seqno)

    @property
    def lineage(self) -> tuple[Span, ...]:
        return self.names.lineage

    def offset(self, position: int) -> Offset:
        return self.names.at(position)

    def version(self, position: int) -> int:
        """A number that identifies the stream and its bytes up to a position, for entity tags.

        It is the id in the offset of the position. For bytes that a fork inherited it is the id of the fork.
        """
        return max(self.id, self.names.at(position).id)

    def mark(self, position: int, seqno: int | None = None) -> str:
        """A position, or the SeqNo before it, in entity tags. In a snapshot it names the snapshot, whose bytes are
        never those of another one."""
        if position >= 0:
            return f"{position if seqno is None else seqno}"
        return f"{self.names.snapshot_at(position).id}.{position - SNAPSHOTS_FIRST if seqno is None else seqno}"

    def size(self, start: int, end: int) -> int:
        """How many bytes a reader gets between two positions."""
        return self.names.size(start, end)


class StreamDetails(msgspec.Struct, frozen=True):
    """What a stream is, beside its bytes: its forks, producers and live readers. Producers include those whose last
    request is being synced."""

    stream: VisibleStream
    forks: int  # how many there are
    readers: int  # live ones
    producers: tuple[tuple[str, ProducerState], ...]  # by the keys of their ids, the newest first, up to a limit
    producer_count: int


class Read(msgspec.Struct, frozen=True):
    """Read whole records from an offset on. The offset None is the tail."""

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None  # return only data before this offset
    bytes_max: int = 1
    wait_s: float = 0.0  # how long to wait at the tail for new data


class ReadMore(msgspec.Struct, frozen=True):
    """Read whole records of a stream that is being followed, from a position on."""

    stream_id: int
    start: int
    until: int | None = None
    bytes_max: int = 1


class ReadReply(msgspec.Struct, frozen=True, gc=False):
    stream: VisibleStream
    start: int
    next: int  # where the next read begins
    until: int | None
    data: bytes
    held: object = None  # large data is counted while this object is referenced; unused in another process

    @property
    def at_tail(self) -> bool:
        return self.next == self.stream.tail


class FindRecords(msgspec.Struct, frozen=True):
    """List the records between two offsets, without their bytes. `until` None is the tail.

    `at_ms` restricts the list to records that were appended at or after that time.
    """

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None
    at_ms: int | None = None
    limit: int = 1


class RecordsReply(msgspec.Struct, frozen=True):
    stream: VisibleStream
    start: int
    end: int
    records: tuple[RecordEnd, ...]


class FindSplits(msgspec.Struct, frozen=True):
    """Find positions at which a range can be split: into `parts` of about equal size, or into parts of at most
    `step_bytes`, unless one record is larger. `until` None is the tail."""

    path: str
    offset: Offset | None = BEGINNING
    until: Offset | None = None
    parts: int = 1
    step_bytes: int = 0
    limit: int = 1


class SplitsReply(msgspec.Struct, frozen=True):
    stream: VisibleStream
    start: int
    end: int
    splits: tuple[int, ...]


class FindFront(msgspec.Struct, frozen=True):
    """Find the records of a stream that were appended before a time; None: all of them."""

    path: str
    at_ms: int | None = None


class FrontReply(msgspec.Struct, frozen=True):
    """What a snapshot can replace."""

    stream: VisibleStream
    start: int  # where a new reader begins
    end: int
    through_ms: int = 0  # when the last record was appended
    seqno: int = 0  # of a table: its last row


class FindRow(msgspec.Struct, frozen=True):
    """Find the first row with a SeqNo larger than `since_id`. A negative `since_id` means the last rows. `until_id`:
    find also where the rows up to this one end, for a reader that begins there."""

    path: str
    since_id: int = 0
    until_id: int | None = None


class RowPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a row: `skip` bytes after the beginning of a record, because reads begin at records."""

    record: int
    skip: int = 0

    @property
    def position(self) -> int:
        return self.record + self.skip


class RowReply(msgspec.Struct, frozen=True):
    table: VisibleStream
    start: RowPosition
    since_id: int  # equivalent to the request, but not negative
    end: int = 0  # where the rows up to `until_id` end, if it was asked for


class VisiblePage(msgspec.Struct, frozen=True):
    """Streams in path order. A page may have few streams or none and not be the last one."""

    streams: tuple[VisibleStream, ...]
    next_after: str | None  # start of the next page; None if this is the last one


class Slice(msgspec.Struct, frozen=True, weakref=True):
    """The data of a stream between two positions. All live readers at the same place get the same object, and a wire
    keeps there what it has encoded, so that it encodes once for all of them."""

    stream_id: int
    kind: ContentKind
    start: int
    next: int  # where the next slice begins
    offset: Offset  # of `next`
    data: bytes
    closed: bool  # the stream was closed, and nothing follows
    now_ms: int
    at_tail: bool = True  # nothing followed at the time
    last_seqno: int = 0  # of a table at the time
    held: object = None  # as in a `ReadReply`
    encoded: dict[object, Any] = {}  # by the format; unused in another process


class Ended(enum.Enum):
    """Why a live reader gets no more data."""

    DELETED = "deleted"
    DRAINING = "draining"
    CLOSED = "closed"  # and read to its end
    REACHED = "reached"  # the position at which it was to end


Reason: TypeAlias = Ended | HeadwaterError


class News(enum.Enum):
    """What happened to a stream that a `PathWatch` may have an interest in."""

    CREATED = "created"
    APPENDED = "appended"  # it has new data
    DELETED = "deleted"


class PathWatch(Protocol):
    """Who is told of the durable changes of streams, by path. The engine asks once about a stream, and again if the
    version has changed, so that an append to a stream without interest costs a comparison."""

    version: int  # increases when there may be an interest in more paths; 0: in none

    def note(self, path: str, news: News) -> bool:
        """Take the news of a stream. Returns whether there is an interest in its path."""
