"""The fold: moves a sealed segment of the journal into the index, in one transaction.

Its result depends only on the index and the segment, and it uses the same `evolve` as the engine. So a fold that was
interrupted can be repeated with the same result.
"""

from __future__ import annotations

from array import array

from headwater import limits
from headwater.log.events import Appended, Created, Deleted
from headwater.store.embedded.index import IndexReader, Meta
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import Segment
from headwater.store.embedded.replay import Replay, Replayed

_WITH_DATA = (Created, Appended)


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
    writer.begin()
    try:
        replay = Replay(writer, meta.folded_sequence, meta.next_id, meta.streams)
        growth: dict[int, _Growth] = {}
        created: set[int] = set()
        for replayed in replay.run([segment]):
            if isinstance(replayed.event, Created):
                created.add(replayed.event.id)
            _grow(growth, replayed)
        # Deletions first, because a new stream may have the path of a deleted one.
        writer.delete([key for key, state in replay.states.items() if state is None and key not in created])
        states = [state for state in replay.states.values() if state is not None]
        writer.put_states(states)
        writer.put_documents(replay.documents)
        for stream_id, grown in growth.items():
            writer.put_bytes(stream_id, grown.start, grown.ends, grown.times, b"".join(grown.parts))
        writer.commit(Meta(segment.number, replay.sequence, replay.next_id, replay.streams))
        return sum(grown.size for grown in growth.values()) + (len(states) + len(growth)) * limits.INDEX_ROW_BYTES
    except BaseException:
        writer.rollback()
        raise


def _grow(growth: dict[int, _Growth], replayed: Replayed) -> None:
    event, state = replayed.event, replayed.state
    if isinstance(event, Deleted):
        growth.pop(event.id, None)
    elif isinstance(event, _WITH_DATA) and event.data and state is not None:
        grown = growth.get(event.id)
        if grown is None:
            grown = growth[event.id] = _Growth(state.tail - len(event.data))
        grown.add(event.data, state.appended_ms)
