"""Offsets as numbers: a position in a stream and the stream id that numbers it.

A fork keeps its ancestors' offsets for the bytes it inherited and numbers the bytes it appends with its own id,
which is always larger. So an offset never names two positions, and an offset from before a stream was deleted and
created again is recognised by its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headwater.errors import InvalidOffsetError, OffsetGoneError


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes (start, end] of a fork that an ancestor holds; none if the fork begins where the ancestor does."""

    id: int
    start: int
    end: int


class Offset(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    id: int  # of the stream that holds the bytes before the position
    position: int


BEGINNING = Offset(0, 0)  # of any stream


def offset_at(stream_id: int, lineage: Sequence[Span], position: int) -> Offset:
    """The one offset of a position."""
    for span in lineage:
        if position <= span.end:
            return Offset(span.id, position)
    return Offset(stream_id, position)


def resolve(stream_id: int, lineage: Sequence[Span], tail: int, offset: Offset | None) -> int:
    """The position that an offset names in a stream that ends at `tail`; None names the tail."""
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
    """The lineage of a fork that leaves a stream at a position.

    It is never empty: a fork that inherits no byte has an empty span of its source, so that the source's first offset
    is one of the fork's too.
    """
    start = lineage[-1].end if lineage else 0
    taken = [span for span in lineage if span.start < position or not span.start]
    spans = [Span(span.id, span.start, min(span.end, position)) for span in taken]
    if position > start or not spans:
        spans.append(Span(stream_id, start, position))
    return tuple(spans)


def owners(stream_id: int, lineage: Sequence[Span], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Which streams hold the bytes from `start` to `end`: their ids, each with where its part ends."""
    for span in lineage:
        if start < min(span.end, end):
            yield span.id, min(span.end, end)
            start = span.end
    if start < end:
        yield stream_id, end
