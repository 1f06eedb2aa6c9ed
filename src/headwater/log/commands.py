"""Commands to the log, and the replies to them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headwater.errors import HeadwaterError
from headwater.log.content import ContentKind
from headwater.log.events import Keeper
from headwater.log.offsets import Offset
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Counted, Retention


class WriteDocument(msgspec.Struct, frozen=True):
    """Write a document, or delete it if `data` is None.

    If `expected` is set, the document must have this version; 0 means that it must not exist.
    """

    key: str
    data: bytes | None
    expected: int | None = None


class ForkRequest(msgspec.Struct, frozen=True):
    source: str
    offset: Offset | None = None  # None: the source's tail
    sub_offset: int = 0
    prefix_bytes: int | None = None  # of the record at the offset, up to the sub-offset; None if it ends before
    source_id: int = 0  # the stream for which `prefix_bytes` was computed
    last_seqno: int = 0  # of a table: the last row before offset and sub-offset


class FramedBody(msgspec.Struct, frozen=True, gc=False):
    """A large JSON body, validated and framed before the command is decided."""

    data: bytes
    refusal: HeadwaterError | None = None  # the error if the body is invalid
    messages: int = 0


class Create(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    now_ms: int
    stream_id: int = 0  # assigned by the engine
    content_type: str | None = None
    kind: ContentKind | None = None  # None: derived from the content type
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    body: bytes = b""
    framed: FramedBody | None = None
    fork: ForkRequest | None = None
    documents: tuple[WriteDocument, ...] = ()  # written in the same record
    owner: str = ""  # the token that the stream counts for
    keeper: Keeper | None = None  # of a view
    retention: Retention | None = None  # None: the default one, and that of an existing stream is not compared
    default_retention: Retention | None = None  # of a new stream that is created without one


class Append(msgspec.Struct, frozen=True):
    """Append to a stream or table. `stream_id` restricts the append to one incarnation of the stream.

    An entry of `ends` is the tail of a stream, or the id and last SeqNo of a table. An id of 0 matches any id.
    """

    path: str
    now_ms: int
    body: bytes
    content_type: str | None = None
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False
    documents: tuple[WriteDocument, ...] = ()  # written in the same record
    framed: FramedBody | None = None
    last_seqno: int | None = None  # of a table: append only if this is its last row
    stream_id: int | None = None
    ends: tuple[Offset, ...] | None = None  # append only if the stream ends at one of these
    keeper: str | None = None  # of a view, with `stream_id`: append only if the stream is the view of this document
    frees: bool = False  # it records that something was removed: neither quotas nor a full disk refuse it
    only_repeats: bool = False  # append nothing: only answer as a repeated append or a refused one would be answered


class Delete(msgspec.Struct, frozen=True):
    path: str
    now_ms: int
    documents: tuple[WriteDocument, ...] = ()  # written in the same record
    ends: tuple[Offset, ...] | None = None  # delete only if the stream ends at one of these


class Expire(msgspec.Struct, frozen=True):
    """Delete the stream at a path if it has expired."""

    path: str
    now_ms: int


class Retain(msgspec.Struct, frozen=True):
    """Change fields of the retention of a stream. `counted` are the messages that the stream has, for a retention that
    counts them; `stream_id` is the stream in which the engine counted."""

    path: str
    now_ms: int
    stream_id: int
    changes: tuple[tuple[str, int | bool | None], ...]
    counted: Counted = Counted()
    documents: tuple[WriteDocument, ...] = ()


class Trim(msgspec.Struct, frozen=True):
    """Remove what is before a record. The engine finds the record; `stream_id` is the stream in which it looked."""

    path: str
    now_ms: int
    stream_id: int
    position: int
    first_ms: int = 0  # when the record at the position was appended; 0 if the position is the tail
    last: int = 0  # the position of the last record
    seqno: int = 0  # of a table: the last row before the position
    keeps_snapshot: bool = False  # the one after which reading continues at the position
    retention: Retention | None = None  # for which it is trimmed; nothing is, if the stream has another one by now
    documents: tuple[WriteDocument, ...] = ()


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """Let readers get a snapshot, which is the whole content of another stream, in place of what is before a position.
    The other stream is hidden from now on. The front is trimmed after a while."""

    path: str
    now_ms: int
    stream_id: int  # of the stream for which the snapshot was made
    snapshot_path: str
    next: int  # the position, which is a record boundary
    newest: int  # the id of the snapshot that this one was made from; 0: there was none
    first: int = 0  # where the stream began, if there was none
    through_ms: int = 0  # when the last record before the position was appended
    seqno: int = 0  # of a table: the last row before the position
    complete_since: int = 0  # of a table: the last row after which the snapshot has all deletions
    documents: tuple[WriteDocument, ...] = ()


class WriteDocuments(msgspec.Struct, frozen=True):
    """Write several documents atomically."""

    documents: tuple[WriteDocument, ...]


StreamCommand: TypeAlias = Create | Append | Delete | Expire | Retain | Trim | Compact
Command: TypeAlias = StreamCommand | WriteDocuments


class Reply(msgspec.Struct, frozen=True, gc=False):
    tail: Offset | None = None
    content_type: str = ""
    closed: bool = False
    existed: bool = False  # of a create: a stream with this configuration exists
    duplicate: bool = False  # of an append: a retry of an accepted append
    producer: ProducerTuple | None = None  # the highest accepted tuple of this producer
    last_seqno: int = 0  # of a table
    first: Offset | None = None  # of a create, a retain or a trim: where the stream begins
    first_seqno: int = 0  # the same of a table
    retention: Retention | None = None
