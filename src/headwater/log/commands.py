"""Commands and replies: what may be asked of the log, and what the requester learns."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headwater.errors import HeadwaterError
from headwater.log.content import ContentKind
from headwater.log.offsets import Offset
from headwater.log.producers import ProducerTuple


class WriteDocument(msgspec.Struct, frozen=True):
    """Write a document, or delete it where there is no data.

    With `expected`, only if its version is that one; 0 stands for a document that does not exist.
    """

    key: str
    data: bytes | None
    expected: int | None = None


class ForkRequest(msgspec.Struct, frozen=True):
    source: str
    offset: Offset | None = None  # None: the source's tail
    sub_offset: int = 0
    prefix_bytes: int | None = None  # of the source's record at the offset, up to the sub-offset; None: it ends before
    source_id: int = 0  # of the stream that `prefix_bytes` was found in
    last_seqno: int = 0  # of a table: that of the last row before offset and sub-offset


class FramedBody(msgspec.Struct, frozen=True, gc=False):
    """A JSON body that was validated and framed ahead of the decision, since it is large."""

    data: bytes
    refusal: HeadwaterError | None = None  # why it cannot be taken


class Create(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    now_ms: int
    stream_id: int = 0  # the engine assigns it
    content_type: str | None = None
    kind: ContentKind | None = None  # None: as the content type says
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    body: bytes = b""
    framed: FramedBody | None = None
    fork: ForkRequest | None = None
    documents: tuple[WriteDocument, ...] = ()  # become durable with it, or not at all


class Append(msgspec.Struct, frozen=True):
    """With `stream_id`, only to that incarnation of the stream, and not to another one that took its path.

    Where a stream ends is an offset. Where a table ends is its id and last SeqNo. An id of 0 stands for any.
    """

    path: str
    now_ms: int
    body: bytes
    content_type: str | None = None
    producer: ProducerTuple | None = None
    seq: str | None = None
    close: bool = False
    documents: tuple[WriteDocument, ...] = ()  # become durable with it, or not at all
    framed: FramedBody | None = None
    last_seqno: int | None = None  # of a table: append only if this is its last row
    stream_id: int | None = None
    ends: tuple[Offset, ...] | None = None  # append only if it ends at one of these


class Delete(msgspec.Struct, frozen=True):
    path: str
    now_ms: int
    documents: tuple[WriteDocument, ...] = ()  # become durable with it, or not at all
    ends: tuple[Offset, ...] | None = None  # delete only if it ends at one of these


class Expire(msgspec.Struct, frozen=True):
    """Delete the stream at a path if it has expired."""

    path: str
    now_ms: int


class WriteDocuments(msgspec.Struct, frozen=True):
    """Write several documents, all or none."""

    documents: tuple[WriteDocument, ...]


StreamCommand: TypeAlias = Create | Append | Delete | Expire
Command: TypeAlias = StreamCommand | WriteDocuments


class Reply(msgspec.Struct, frozen=True, gc=False):
    tail: Offset | None = None
    content_type: str = ""
    closed: bool = False
    existed: bool = False  # of a create: the stream was there already, as asked for
    duplicate: bool = False  # of an append: a retry of one that was accepted before
    producer: ProducerTuple | None = None  # the highest accepted tuple of the requester
    last_seqno: int = 0  # of a table
