"""Offsets as numbers: a stream id or a timeline id, and a position.

Offsets of bytes that a fork inherited have the id of the ancestor; offsets of its own bytes have the id of the fork,
which is larger. So each offset means one position. If a stream is deleted and created again, its id changes, and old
offsets are recognised by their id.

If a store is restored to an earlier state, a timeline begins: data that was written after that state is lost, and other
data gets its positions. The id of a timeline is larger than all ids that were used before. Offsets of bytes that were
appended in a timeline have its id. So an offset of lost bytes is recognised too: its id is that of the stream or of an
earlier timeline, and its position is past the end of that one. Positions up to that end have the offsets they had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headwater.errors import InvalidOffsetError, OffsetGoneError, OffsetLostError, OffsetTrimmedError


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes (start, end] of a fork that an ancestor stores; empty for a fork at the ancestor's beginning."""

    id: int
    start: int
    end: int


class Timeline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A timeline in a stream: bytes after `start` were appended in it, up to the start of the next one."""

    id: int
    start: int


class Offset(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    id: int  # of the stream in which the bytes before the position are stored, or of the timeline of these bytes
    position: int


BEGINNING = Offset(0, 0)  # valid for any stream


class Names(msgspec.Struct, frozen=True, gc=False):
    """What the offsets of a stream depend on. `timelines` has those of inherited bytes too, oldest first."""

    stream_id: int
    lineage: tuple[Span, ...] = ()
    timelines: tuple[Timeline, ...] = ()

    def at(self, position: int) -> Offset:
        """The offset of a position."""
        if not self.lineage and not self.timelines:
            return Offset(self.stream_id, position)
        return Offset(self._id(position), position)

    def _id(self, position: int) -> int:
        """Ids increase with positions, so of the stream that stores a byte and its timeline the later one has the
        larger id."""
        owner = next((span.id for span in self.lineage if position <= span.end), self.stream_id)
        begun = (timeline.id for timeline in reversed(self.timelines) if position > timeline.start)
        return max(owner, next(begun, 0))

    def resolve(self, tail: int, offset: Offset | None, timeline: int = 0, first: int = 0) -> int:
        """The position of an offset in a stream that ends at `tail` and begins at `first`. The offset None is the tail.

        `timeline` is the current timeline of the store. The stream has it only after an append in it.
        """
        if offset is None:
            return tail
        if offset == BEGINNING:
            return first
        position = offset.position
        if position <= tail and offset.id in (self._id(position), self._id(position + 1)):
            if position < first:
                raise self.trimmed(first, position)
            return position
        raise self._refusal(tail, offset, timeline)

    def trimmed(self, first: int, position: int) -> OffsetTrimmedError:
        """The error for a position before the first one that is there."""
        beginning = self.at(first)
        return OffsetTrimmedError(
            f"position {position} was trimmed, the stream begins at {first}; discard what was read of this stream, and "
            "read it from the beginning",
            first=(beginning.id, beginning.position),
        )

    def _refusal(self, tail: int, offset: Offset, timeline: int) -> InvalidOffsetError | OffsetGoneError:
        known = (self.stream_id, *[span.id for span in self.lineage], *[one.id for one in self.timelines])
        if offset.id < timeline and (offset.id in known or offset.id > self.stream_id):
            return OffsetLostError(
                f"the server was restored to an earlier state, without the data up to position {offset.position}; "
                "discard what was read of this stream, and read it from the beginning"
            )
        if offset.id in known:
            return InvalidOffsetError(f"position {offset.position} is not in this stream, which ends at {tail}")
        if offset.id < max(self.stream_id, timeline):
            return OffsetGoneError("the offset belongs to a stream that was deleted; read again from the beginning")
        return InvalidOffsetError("the offset belongs to another stream")

    def inherited(self, position: int) -> Names:
        """The lineage and timelines of a fork of the stream at a position, with an id of 0.

        The lineage is never empty. A fork that inherits no bytes has an empty span, so that the first offset of the
        source is valid in the fork.
        """
        start = self.lineage[-1].end if self.lineage else 0
        taken = [span for span in self.lineage if span.start < position or not span.start]
        spans = [Span(span.id, span.start, min(span.end, position)) for span in taken]
        if position > start or not spans:
            spans.append(Span(self.stream_id, start, position))
        return Names(0, tuple(spans), tuple([one for one in self.timelines if one.start < position]))


def owners(stream_id: int, lineage: Sequence[Span], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The streams in which the bytes from `start` to `end` are stored: pairs of an id and the end of its part."""
    for span in lineage:
        if start < min(span.end, end):
            yield span.id, min(span.end, end)
            start = span.end
    if start < end:
        yield stream_id, end
