"""The fold: moves a sealed segment of the journal into the index, in one transaction.

Its result depends only on the index and the segment, not on a clock, and it uses the same `evolve` as the engine. So a
fold that was interrupted can be repeated with the same result.

If the row of a stream in the index is damaged, its new state cannot be computed. The fold then leaves the row as it is,
so that the damage stays visible, keeps the bytes of the stream, logs it, and folds everything else.
"""

from __future__ import annotations

import logging
from array import array

from headwater import limits
from headwater.log.events import Appended, Created, Deleted, ForkReleased, Trimmed
from headwater.store.embedded.index import IndexReader, Meta
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import CorruptJournalError, Segment, segment_name
from headwater.store.embedded.replay import Replay, Replayed

log = logging.getLogger("headwater.store")


class _Growth:
    """The records that a segment adds to one stream."""

    __slots__ = ("ends", "parts", "size", "start", "times")

    def __init__(self, start: int) -> None:
        self.start = start
        self.parts: list[bytes] = []
        self.ends = array("I")
        self.times = array("Q")
        self.size = 0

    def add(self, data: bytes, at_ms: int) -> None:
        self.parts.append(data)
        self.size += len(data)
        self.ends.append(self.size)
        self.times.append(at_ms)


def fold(reader: IndexReader, writer: IndexWriter, segment: Segment) -> int:
    """Fold a segment, unless it is already folded. Returns the size of the rows that it added, about.

    A stream that was created and deleted in the segment leaves nothing in the index: no row, no bytes, no garbage.
    """
    meta = reader.meta()
    if segment.number <= meta.folded_segment:
        return 0
    if segment.previous != meta.folded_salt:
        raise CorruptJournalError(segment_name(segment.number), 0, "it does not follow the last folded segment")
    writer.begin()
    try:
        replay = Replay(reader.rows, meta)
        growth: dict[int, _Growth] = {}
        created: set[int] = set()
        freed: set[int] = set()
        for replayed in replay.run([segment]):
            if isinstance(replayed.event, Created):
                created.add(replayed.event.id)
            elif isinstance(replayed.event, Trimmed | ForkReleased):
                freed.add(replayed.event.id)
            _grow(growth, replayed)
        # Deletions first, because a new stream may have the path of a deleted one.
        writer.delete([key for key, state in replay.states.items() if state is None and key not in created])
        states = [state for state in replay.states.values() if state is not None]
        writer.put_states(states)
        writer.trim([(state.id, *unread) for state in states if state.id in freed for unread in state.unread])
        writer.put_documents(replay.documents)
        for stream_id, grown in growth.items():
            state = replay.states.get(stream_id)
            writer.put_bytes(stream_id, grown.start, grown.ends, grown.times, b"".join(grown.parts), state)
        folded = (segment.number, replay.sequence, segment.salt)
        writer.commit(Meta(*folded, replay.next_id, replay.streams, replay.latest, replay.timeline))
    except BaseException:
        writer.rollback()
        raise
    for error in replay.damaged.values():
        log.error("%s; its changes in segment %d, except its bytes, are not in the index", error, segment.number)
    return sum(grown.size for grown in growth.values()) + (len(states) + len(growth)) * limits.INDEX_ROW_BYTES


def _grow(growth: dict[int, _Growth], replayed: Replayed) -> None:
    """Note the bytes of an event. They are kept even if the state of the stream is damaged, because forks read them."""
    event, state = replayed.event, replayed.state
    if isinstance(event, Deleted):
        growth.pop(event.id, None)
    elif isinstance(event, Appended) and event.data:
        at_ms = event.at_ms if state is None else state.appended_ms
        _grown(growth, event.id, event.position).add(event.data, at_ms)
    elif isinstance(event, Created) and event.data and state is not None:
        _grown(growth, event.id, state.start).add(event.data, event.at_ms)


def _grown(growth: dict[int, _Growth], stream_id: int, start: int) -> _Growth:
    grown = growth.get(stream_id)
    if grown is None:
        grown = growth[stream_id] = _Growth(start)
    return grown
