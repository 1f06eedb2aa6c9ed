from __future__ import annotations

import pytest

from headwater.errors import InvalidOffsetError, OffsetGoneError, OffsetLostError, OffsetTrimmedError
from headwater.log.offsets import BEGINNING, SNAPSHOTS_FIRST, Names, Offset, Snapshot, Span, Timeline

LINEAGE = (Span(2, 0, 10), Span(5, 10, 20))
FORK = Names(7, LINEAGE)
STREAM = Names(7)


def owners(names: Names, start: int, end: int) -> list[tuple[int, int]]:
    return [(part.owner, part.end) for part in names.parts(start, end)]


def test_a_fork_keeps_the_offsets_of_its_ancestors() -> None:
    assert FORK.at(0) == Offset(2, 0)
    assert FORK.at(10) == Offset(2, 10)
    assert FORK.at(20) == Offset(5, 20)
    assert FORK.at(21) == Offset(7, 21)
    assert FORK.resolve(30, Offset(7, 20)) == 20
    with pytest.raises(InvalidOffsetError):
        FORK.resolve(30, Offset(5, 21))  # data that the source appended after the fork


def test_offsets_of_other_incarnations() -> None:
    with pytest.raises(OffsetGoneError):
        STREAM.resolve(30, Offset(6, 3))
    with pytest.raises(InvalidOffsetError, match="another stream"):
        STREAM.resolve(30, Offset(8, 3))
    with pytest.raises(InvalidOffsetError, match="ends at 30"):
        STREAM.resolve(30, Offset(7, 31))
    assert STREAM.resolve(30, BEGINNING) == 0
    assert STREAM.resolve(30, None) == 30


def test_a_fork_inherits_spans_and_reads_from_their_owners() -> None:
    assert FORK.inherited(25).lineage == (*LINEAGE, Span(7, 20, 25))
    assert FORK.inherited(15).lineage == (Span(2, 0, 10), Span(5, 10, 15))
    assert owners(FORK, 0, 30) == [(2, 10), (5, 20), (7, 30)]
    assert owners(FORK, 12, 18) == [(5, 18)]
    assert owners(FORK, 20, 20) == []


def test_a_fork_at_the_beginning_has_the_first_offset_of_its_source() -> None:
    lineage = Names(5).inherited(0).lineage
    fork = Names(7, lineage)
    assert fork.at(0) == Offset(5, 0)
    assert fork.resolve(30, Offset(5, 0)) == 0
    with pytest.raises(InvalidOffsetError):
        fork.resolve(30, Offset(5, 1))  # data that the source appended after the fork
    with pytest.raises(OffsetGoneError):
        fork.resolve(30, Offset(6, 0))  # of a stream that is not an ancestor
    assert owners(fork, 0, 30) == [(7, 30)]
    for position in (0, 4):  # a fork of the fork, before and within its own bytes
        again = Names(9, fork.inherited(position).lineage)
        assert again.at(0) == Offset(5, 0)
        assert again.resolve(30, Offset(5, 0)) == 0
        assert [owner for owner, _ in owners(again, 0, 30)] == ([9] if position == 0 else [7, 9])


def test_offsets_after_a_restore_have_the_id_of_the_timeline() -> None:
    names = Names(7, timelines=(Timeline(100, 10), Timeline(200, 20)))
    assert [names.at(position) for position in (0, 10, 11, 20, 21)] == [
        Offset(7, 0),
        Offset(7, 10),
        Offset(100, 11),
        Offset(100, 20),
        Offset(200, 21),
    ]
    assert names.resolve(30, Offset(7, 10), 200) == 10
    assert names.resolve(30, Offset(100, 20), 200) == 20
    for lost in (Offset(7, 11), Offset(100, 21), Offset(150, 5)):
        with pytest.raises(OffsetLostError):
            names.resolve(30, lost, 200)
    with pytest.raises(InvalidOffsetError, match="ends at 30"):
        names.resolve(30, Offset(200, 31), 200)


def test_a_lost_offset_is_recognised_before_the_stream_grows_again() -> None:
    with pytest.raises(OffsetLostError):
        STREAM.resolve(10, Offset(7, 11), 100)
    assert STREAM.resolve(10, Offset(7, 10), 100) == 10
    with pytest.raises(InvalidOffsetError, match="another stream"):
        STREAM.resolve(10, Offset(101, 3), 100)


def test_a_fork_inherits_the_timelines_of_its_bytes() -> None:
    source = Names(7, timelines=(Timeline(100, 10), Timeline(200, 20)))
    assert source.inherited(20).timelines == (Timeline(100, 10),)
    fork = source.inherited(15)
    named = Names(300, fork.lineage, fork.timelines)
    assert [named.at(position) for position in (10, 15, 16)] == [Offset(7, 10), Offset(100, 15), Offset(300, 16)]


# Snapshots. The ids of streams come from the clock in microseconds.

ID = 1_790_000_000_000_000
OLD = Snapshot(ID + 100, SNAPSHOTS_FIRST, SNAPSHOTS_FIRST + 50, 400, at_ms=1)
NEW = Snapshot(ID + 900, SNAPSHOTS_FIRST + 50, SNAPSHOTS_FIRST + 80, 700, at_ms=2)
COMPACTED = Names(ID, snapshots=(OLD, NEW))


def test_a_reader_begins_at_the_newest_snapshot_and_goes_on_after_what_it_replaces() -> None:
    assert COMPACTED.resolve(1_000, BEGINNING) == COMPACTED.begin(0) == NEW.start
    assert [tuple(part) for part in COMPACTED.parts(NEW.start + 10, 1_000)] == [
        (NEW.id, NEW.start + 10, NEW.end, NEW.start, 700),
        (ID, 700, 1_000, 0, 1_000),
    ]
    assert [tuple(part) for part in COMPACTED.parts(OLD.start, OLD.start + 5)] == [
        (OLD.id, OLD.start, OLD.start + 5, OLD.start, OLD.start + 5)
    ]
    assert COMPACTED.size(OLD.start + 10, 1_000) == 40 + 600
    assert COMPACTED.after(NEW.start, 29) == NEW.end - 1
    assert (COMPACTED.after(NEW.start, 30), COMPACTED.after(NEW.start, 35)) == (700, 705)


def test_offsets_in_snapshots_sort_before_all_others_and_name_one_position() -> None:
    positions = [OLD.start, OLD.end - 1, NEW.start, NEW.end - 1, 0, 400, 700, 1_000]
    offsets = [COMPACTED.at(position) for position in positions]
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == len(positions)
    assert [COMPACTED.resolve(1_000, offset) for offset in offsets] == positions
    assert all(offset.position >= 0 and offset.id > 0 for offset in offsets)
    for offset in (Offset(OLD.offset_id, 50), Offset(NEW.offset_id, 49), Offset(NEW.offset_id, 80), Offset(ID, 1_001)):
        with pytest.raises((InvalidOffsetError, OffsetGoneError)):
            COMPACTED.resolve(1_000, offset)


def test_an_offset_in_a_snapshot_that_was_dropped_is_told_where_the_stream_begins() -> None:
    names = Names(ID, snapshots=(NEW,), dropped=OLD)
    for position in (0, 20, 49):
        with pytest.raises(OffsetTrimmedError) as error:
            names.resolve(1_000, Offset(OLD.offset_id, position), first=700)
        assert error.value.first == (NEW.offset_id, 50)
    with pytest.raises(OffsetTrimmedError) as error:
        names.resolve(1_000, Offset(ID, 699), first=700)
    assert error.value.first == (NEW.offset_id, 50)
    with pytest.raises(OffsetTrimmedError):
        names.at(OLD.start)
    assert not isinstance(_error(names, Offset(OLD.offset_id, 50)), OffsetTrimmedError)
    # Another stream at the path, whose id is larger than those of all snapshots before it.
    assert isinstance(_error(Names(ID + 5_000), Offset(NEW.offset_id, 60)), OffsetGoneError)
    # After a restore to a moment before the snapshot, another one has its positions.
    again = Snapshot(ID + 9_000, NEW.start, NEW.end + 30, 700, at_ms=3)
    lost = _error(Names(ID, snapshots=(OLD, again)), NEW_OFFSET, timeline=ID + 8_000)
    assert isinstance(lost, OffsetGoneError)


NEW_OFFSET = Offset(NEW.offset_id, 60)


def _error(names: Names, offset: Offset, timeline: int = 0) -> Exception:
    with pytest.raises((InvalidOffsetError, OffsetGoneError)) as error:
        names.resolve(1_000, offset, timeline, 700)
    return error.value


def test_a_read_that_ends_before_what_a_snapshot_replaces_does_not_begin_with_it() -> None:
    assert COMPACTED.begin(0, until=699) == OLD.start
    assert COMPACTED.begin(0, until=700) == NEW.start
    assert COMPACTED.begin(0, until=399) == 0
    assert COMPACTED.begin(0, until=OLD.start + 3) == OLD.start


def test_a_fork_has_the_newest_snapshot_that_ends_before_it() -> None:
    assert COMPACTED.inherited(1_000).snapshots == (NEW,)
    assert COMPACTED.inherited(700).snapshots == (NEW,)
    assert COMPACTED.inherited(699).snapshots == (OLD,)
    assert COMPACTED.inherited(399).snapshots == ()
    inherited = COMPACTED.inherited(800)
    fork = Names(ID + 2_000, inherited.lineage, snapshots=inherited.snapshots)
    assert fork.at(NEW.start + 3) == COMPACTED.at(NEW.start + 3)
    assert [tuple(part)[:3] for part in fork.parts(NEW.start, 900)] == [
        (NEW.id, NEW.start, NEW.end),
        (ID, 700, 800),
        (ID + 2_000, 800, 900),
    ]


def test_ids_that_do_not_come_from_the_clock_allow_no_snapshot() -> None:
    assert COMPACTED.can_have(ID + 1_000)
    assert not Names(7).can_have(8)
    assert not Names(7).can_have(ID)
    assert not COMPACTED.can_have(ID - 1)
    assert not Names(ID, (Span(9, 0, 10),)).can_have(ID + 1_000)
