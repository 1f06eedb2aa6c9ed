"""Decoding of format 1 of a data directory.

Format 1 stored the offset of a fork as text, no times of folded records and producers, and a CRC-32 of the data of a
chunk. Its journal segments can be read as they are. Its index is migrated once (`upgrade.py`), except for the chunks,
which are recognised by their missing time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from headwater.log.content import ContentKind
from headwater.log.events import (
    Appended,
    Created,
    Deleted,
    Fork,
    ForkAdded,
    ForkReleased,
    Record,
    SoftDeleted,
    Touched,
)
from headwater.log.offsets import BEGINNING, Offset, Span
from headwater.log.producers import ProducerTuple
from headwater.log.state import StreamState


class _Fork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    source_id: int
    source_path: str
    offset: str
    sub_offset: int
    inherits_expiry: bool


class _Created(msgspec.Struct, frozen=True, array_like=True, tag="created", kw_only=True):
    id: int
    path: str
    content_type: str
    kind: ContentKind
    at_ms: int
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    fork: _Fork | None = None
    lineage: tuple[Span, ...] = ()
    data: bytes = b""


class _StreamState(msgspec.Struct, kw_only=True):
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
    fork: _Fork | None = None
    lineage: tuple[Span, ...] = ()
    forks: int = 0
    soft_deleted: bool = False
    version: int = 1


_Event: TypeAlias = _Created | Appended | Touched | ForkAdded | ForkReleased | SoftDeleted | Deleted

_records = msgspec.msgpack.Decoder(list[tuple[_Event, ...]])
_states = msgspec.msgpack.Decoder(_StreamState)


def decode_records(payload: bytes | memoryview) -> list[Record]:
    """The records of a journal batch."""
    return [
        tuple([_created(event) if isinstance(event, _Created) else event for event in record])
        for record in _records.decode(payload)
    ]


def decode_state(row: bytes) -> StreamState:
    """Decode a state of the index, without its producers.

    The times of its records are unknown. None of them is later than the last use of the stream.
    """
    found = _fields(_states.decode(row))
    found["fork"] = _fork(found["fork"], found["lineage"])
    return StreamState(**found, appended_ms=found["accessed_ms"])


def _created(event: _Created) -> Created:
    found = _fields(event)
    found["fork"] = _fork(event.fork, event.lineage)
    return Created(**found)


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _fork(fork: _Fork | None, lineage: tuple[Span, ...]) -> Fork | None:
    if fork is None:
        return None
    offset = _offset(fork.offset, lineage)
    depth = max(1, len(lineage))
    return Fork(fork.source_id, fork.source_path, offset, fork.sub_offset, fork.inherits_expiry, depth)


def _offset(text: str, lineage: tuple[Span, ...]) -> Offset:
    """Parse an offset. That of a fork at the tail is the end of the inherited bytes."""
    stream_id, _, position = text.partition("_")
    if position:
        return Offset(int(stream_id), int(position))
    if text == "now" and lineage:
        return Offset(lineage[-1].id, lineage[-1].end)
    return BEGINNING
