"""Positions in streams, as the checkpoint of a query stores them.

The end of a closed stream is written `offset ended`. Nothing can follow it, so deleting the stream loses no data.
"""

from __future__ import annotations

import msgspec

from headwater.errors import OptionError
from headwater.positions import BEGINNING, NOW, NUMBERED, Position, byte_position, incarnation, is_in_snapshot

# `incarnation` and `byte_position` in SQL, for the column `offset`.
_IN_SQL = f"try_cast(regexp_extract(offset, '^{NUMBERED.pattern}$', %d) AS BIGINT)"
INCARNATION_SQL = _IN_SQL % 1
BYTE_POSITION_SQL = _IN_SQL % 2


class StreamPlace(Position, frozen=True):
    ended: bool = False

    def __str__(self) -> str:
        text = Position.__str__(self)
        return f"{text}{_ENDED}" if self.ended else text

    def is_at(self, other: StreamPlace) -> bool:
        return (self.offset, self.skip) == (other.offset, other.skip)


_ENDED = " ended"
EARLIEST_PLACE = StreamPlace()


def parse_place(text: str) -> StreamPlace:
    try:
        place = StreamPlace.parse(text.removesuffix(_ENDED))
    except ValueError:
        place = StreamPlace(NOW)
    if place.offset == NOW:
        raise OptionError(
            f"a position must be earliest, latest, an offset of the server, or offset+count, got {text[:80]!r}"
        )
    return StreamPlace(place.offset, place.skip, place.end, text.endswith(_ENDED))


class SnapshotOf(msgspec.Struct, frozen=True):
    """Marks a range as one of a snapshot: the state of a stream at an offset.

    It is in a stream of its own that ends at `tail`, or, without `tail`, it is the beginning of the stream, which
    compaction has made.
    """

    stream: str
    offset: str
    tail: str | None


def bytes_between(place: Position, end: Position) -> int | None:
    """Bytes from a position to the end of a stream, on servers whose offsets count bytes. If the end has another
    incarnation, the stream was created again and is read from its beginning."""
    first, last = byte_position(place.offset), byte_position(end.offset)
    if first is None or last is None:
        return None
    if is_in_snapshot(place.offset) and not is_in_snapshot(end.offset):
        return last  # about
    is_same = place.offset == BEGINNING or incarnation(place.offset) == incarnation(end.offset)
    return last - first if is_same and last >= first else last


class StreamRange(msgspec.Struct, frozen=True):
    """The range of one stream that one task reads."""

    path: str
    content_type: str
    start: Position
    end: Position
    exact: bool = False  # offsets count stored bytes, so every message has its own position
    snapshot_of: SnapshotOf | None = None
