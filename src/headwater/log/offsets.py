"""Offsets as numbers: a stream id and a position.

Offsets of bytes that a fork inherited have the id of the ancestor; offsets of its own bytes have the id of the fork,
which is larger. So each offset means one position. If a stream is deleted and created again, its id changes, and old
offsets are recognised by their id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headwater.errors import InvalidOffsetError, OffsetGoneError


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes (start, end] of a fork that an ancestor stores; empty for a fork at the ancestor's beginning."""

    id: int
    start: int
    end: int


class Offset(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    id: int  # of the stream in which the bytes before the position are stored
    position: int


BEGINNING = Offset(0, 0)  # valid for any stream


def offset_at(stream_id: int, lineage: Sequence[Span], position: int) -> Offset:
    """The offset of a position."""
    for span in lineage:
        if position <= span.end:
            return Offset(span.id, position)
    return Offset(stream_id, position)


def resolve(stream_id: int, lineage: Sequence[Span], tail: int, offset: Offset | None) -> int:
    """The position of an offset in a stream that ends at `tail`. The offset None is the tail."""
    if offset is None:
        return tail
    if offset == BEGINNING:
        return 0
    first, last = _bounds(stream_id, lineage, tail, offset.id)
    if not first <= offset.position <= last:
        raise InvalidOffsetError(f"position {offset.position} is not in this stream, which ends at {tail}")
    return offset.position


def _bounds(stream_id: int, lineage: Sequence[Span], tail: int, offset_id: int) -> tuple[int, int]:
    if offset_id == stream_id:
        return lineage[-1].end if lineage else 0, tail
    for span in lineage:
        if span.id == offset_id:
            return span.start, span.end
    if offset_id < stream_id:
        raise OffsetGoneError("the offset belongs to a stream that was deleted; read again from the beginning")
    raise InvalidOffsetError("the offset belongs to another stream")


def inherited(stream_id: int, lineage: Sequence[Span], position: int) -> tuple[Span, ...]:
    """The lineage of a fork of a stream at a position.

    It is never empty. A fork that inherits no bytes has an empty span, so that the first offset of the source is valid
    in the fork.
    """
    start = lineage[-1].end if lineage else 0
    taken = [span for span in lineage if span.start < position or not span.start]
    spans = [Span(span.id, span.start, min(span.end, position)) for span in taken]
    if position > start or not spans:
        spans.append(Span(stream_id, start, position))
    return tuple(spans)


def owners(stream_id: int, lineage: Sequence[Span], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The streams in which the bytes from `start` to `end` are stored: pairs of an id and the end of its part."""
    for span in lineage:
        if start < min(span.end, end):
            yield span.id, min(span.end, end)
            start = span.end
    if start < end:
        yield stream_id, end
