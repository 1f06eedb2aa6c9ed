"""Offsets as numbers: a stream id or a timeline id, and a position.

Offsets of bytes that a fork inherited have the id of the ancestor; offsets of its own bytes have the id of the fork,
which is larger. So each offset means one position. If a stream is deleted and created again, its id changes, and old
offsets are recognised by their id.

If a store is restored to an earlier state, a timeline begins: data that was written after that state is lost, and other
data gets its positions. The id of a timeline is larger than all ids that were used before. Offsets of bytes that were
appended in a timeline have its id. So an offset of lost bytes is recognised too: its id is that of the stream or of an
earlier timeline, and its position is past the end of that one. Positions up to that end have the offsets they had.

Compaction replaces the front of a stream by a snapshot: the bytes of a hidden stream. A reader gets the newest snapshot
and then the stream from a later position on. Inside the engine, bytes of snapshots have negative positions, and those
of a later snapshot of a stream are larger. Offsets of these bytes have an id that is made from that of the hidden
stream. It is smaller than the ids of the stream, so they sort before its other offsets, and as the ids of hidden
streams are never used again, an offset in one snapshot never means a position in another one, even after a restore.
The offsets of a position are those of `Names`; nothing else converts one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
SNAPSHOTS_FIRST = -(10**16)  # the position of the first byte of the first snapshot of a stream
_SNAPSHOT_IDS = 10**15  # what the ids in offsets of snapshots are less than those of the hidden streams


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a reader gets in place of the bytes before the position `next`."""

    id: int  # of the hidden stream that stores it
    start: int  # its positions, which are negative
    end: int
    next: int
    at_ms: int  # when it replaced these bytes
    through_ms: int = 0  # when the last record before `next` was appended
    seqno: int = 0  # of a table: the last row before `next`
    complete_since: int = 0  # of a table: it has every row after this one that a reader needs, also deletions

    @property
    def offset_id(self) -> int:
        return self.id - _SNAPSHOT_IDS

    def has(self, position: int) -> bool:
        return self.start <= position < self.end


class Part(NamedTuple):
    """Bytes of a stream that are stored in one place. Their positions there are less by `shift`."""

    owner: int  # the id of the stream that stores them
    start: int
    end: int
    shift: int
    next: int  # where the part after it begins


class Names(msgspec.Struct, frozen=True, gc=False):
    """What the positions and offsets of a stream depend on. `timelines` has those of inherited bytes too, oldest
    first."""

    stream_id: int
    lineage: tuple[Span, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()  # oldest first
    dropped: Snapshot | None = None  # the last one that is not there any more
    severed: int = 0  # what leads to the content up to a position before this one was trimmed

    def at(self, position: int) -> Offset:
        """The offset of a position."""
        if position < 0:
            return Offset(self.snapshot_at(position).offset_id, position - SNAPSHOTS_FIRST)
        if not self.lineage and not self.timelines:
            return Offset(self.stream_id, position)
        return Offset(self._id(position), position)

    def begin(self, first: int, until: int | None = None) -> int:
        """Where a reader begins: at the newest snapshot, otherwise at the first record. `until`: without what is at or
        after this position. OffsetTrimmedError if the records up to it are not all that leads to it."""
        snapshot = self.front(until)
        if snapshot is None:
            self.check_leads(first, until)
        return first if snapshot is None else snapshot.start

    def front(self, until: int | None = None) -> Snapshot | None:
        """The snapshot with which a reader begins."""
        for snapshot in reversed(self.snapshots):
            if until is None or snapshot.next <= until or snapshot.has(until):
                return snapshot
        return None

    def check_leads(self, first: int, until: int | None) -> None:
        """Refuse to begin at the first record if a trim has removed what came before it, and only a snapshot of a later
        position has that still."""
        if until is not None and 0 <= until < self.severed:
            raise self.trimmed(first, until)

    def snapshot_at(self, position: int) -> Snapshot:
        """The snapshot with a byte at a position. OffsetTrimmedError if it is not there any more."""
        for snapshot in self.snapshots:
            if snapshot.has(position):
                return snapshot
        raise OffsetTrimmedError("the snapshot of the stream that was being read was replaced by a newer one")

    def has(self, position: int) -> bool:
        """Whether a position in a snapshot is there."""
        return any(snapshot.has(position) for snapshot in self.snapshots)

    def parts(self, start: int, end: int) -> Iterator[Part]:
        """Where the bytes that a reader gets between two positions are stored, in order."""
        if start < 0:
            snapshot = self.snapshot_at(start)
            stop = min(snapshot.end, end)
            if start < stop:
                yield Part(snapshot.id, start, stop, snapshot.start, snapshot.next if stop == snapshot.end else stop)
            start = snapshot.next
        for span in self.lineage:
            stop = min(span.end, end)
            if start < stop:
                yield Part(span.id, start, stop, 0, stop)
                start = stop
        if start < end:
            yield Part(self.stream_id, start, end, 0, end)

    def after(self, start: int, size: int) -> int:
        """The position of the byte that a reader gets after a number of bytes from a position on."""
        if start < 0:
            snapshot = self.snapshot_at(start)
            if start + size < snapshot.end:
                return start + size
            return snapshot.next + start + size - snapshot.end
        return start + size

    def size(self, start: int, end: int) -> int:
        """How many bytes a reader gets between two positions."""
        if start >= 0 or not self.has(start):
            return max(0, end - max(0, start))
        return sum([part.end - part.start for part in self.parts(start, end)])

    def _id(self, position: int) -> int:
        """Ids increase with positions, so of the stream that stores a byte and its timeline the later one has the
        larger id."""
        owner = next((span.id for span in self.lineage if position <= span.end), self.stream_id)
        begun = (timeline.id for timeline in reversed(self.timelines) if position > timeline.start)
        return max(owner, next(begun, 0))

    def _has_id(self, offset: Offset) -> bool:
        """Whether the id of an offset, which is not in a snapshot, is one of its position. The position at which a fork
        or a timeline begins has two: that of the byte before it and that of the byte after it."""
        if not self.lineage and not self.timelines:
            return offset.id == self.stream_id
        return offset.id in (self._id(offset.position), self._id(offset.position + 1))

    def resolve(
        self, tail: int, offset: Offset | None, timeline: int = 0, first: int = 0, until: int | None = None
    ) -> int:
        """The position of an offset in a stream that ends at `tail` and whose own or inherited bytes begin at `first`.
        The offset None is the tail.

        `timeline` is the current timeline of the store. The stream has it only after an append in it. With `until`, the
        beginning is that of a read up to this position.
        """
        if offset is None:
            return tail
        if offset == BEGINNING:
            return self.begin(first, until)
        position = offset.position
        if position <= tail and self._has_id(offset):
            if position < first:
                raise self.trimmed(first, position)
            return position
        for snapshot in self.snapshots:
            if offset.id == snapshot.offset_id and snapshot.has(position + SNAPSHOTS_FIRST):
                return position + SNAPSHOTS_FIRST
        raise self._refusal(tail, offset, timeline, first)

    def trimmed(self, first: int, position: int) -> OffsetTrimmedError:
        """The error for a position before the first one that is there."""
        begin = self.begin(first)
        beginning = self.at(begin)
        what = "in a snapshot that is not there any more" if position < 0 else f"{position} was trimmed"
        if position >= first:
            what = f"{position} is there, but what leads to it was trimmed"
        where = "a newer snapshot" if begin < 0 else f"{begin}"
        return OffsetTrimmedError(
            f"position {what}, the stream begins at {where}; discard what was read of this stream, and read it from "
            "the beginning",
            first=(beginning.id, beginning.position),
        )

    def _refusal(
        self, tail: int, offset: Offset, timeline: int, first: int
    ) -> InvalidOffsetError | OffsetGoneError | OffsetTrimmedError:
        if self._is_dropped(offset):
            return self.trimmed(first, -1)
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

    def _is_dropped(self, offset: Offset) -> bool:
        """Whether an offset is one in a snapshot of this stream that is not there any more."""
        dropped = self.dropped
        if dropped is None or not self.oldest_id < offset.id + _SNAPSHOT_IDS <= dropped.id:
            return False
        return offset.position + SNAPSHOTS_FIRST < dropped.end

    @property
    def oldest_id(self) -> int:
        """The smallest id in the offsets of the stream and its ancestors."""
        return self.lineage[0].id if self.lineage else self.stream_id

    @property
    def newest(self) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def snapshots_end(self) -> int:
        """Where the positions of the next snapshot begin."""
        newest = self.snapshots[-1] if self.snapshots else self.dropped
        return SNAPSHOTS_FIRST if newest is None else newest.end

    def can_have(self, snapshot_id: int) -> bool:
        """Whether the offsets of a snapshot that a stream stores sort before those of this stream, and no other
        offset can be one of them. The ids of both come from the clock."""
        return 0 < snapshot_id - _SNAPSHOT_IDS < self.oldest_id < snapshot_id

    def inherited(self, position: int) -> Names:
        """The lineage, timelines and snapshot of a fork of the stream at a position, with an id of 0.

        The lineage is never empty. A fork that inherits no bytes has an empty span, so that the first offset of the
        source is valid in the fork.
        """
        start = self.lineage[-1].end if self.lineage else 0
        taken = [span for span in self.lineage if span.start < position or not span.start]
        spans = [Span(span.id, span.start, min(span.end, position)) for span in taken]
        if position > start or not spans:
            spans.append(Span(self.stream_id, start, position))
        snapshot = next((one for one in reversed(self.snapshots) if one.next <= position), None)
        timelines = tuple([one for one in self.timelines if one.start < position])
        if snapshot is None:
            return Names(0, tuple(spans), timelines)
        severed = snapshot.next if self.severed or snapshot != self.snapshots[0] else 0
        return Names(0, tuple(spans), timelines, (snapshot,), severed=severed)


def first_seqno(snapshots: tuple[Snapshot, ...], trimmed_seqno: int) -> int:
    """The first SeqNo of a table for whose row and all later ones a reader gets what has become of them."""
    return min(trimmed_seqno, snapshots[-1].complete_since if snapshots else trimmed_seqno) + 1
