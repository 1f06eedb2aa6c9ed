from __future__ import annotations

import pytest

from headwater.errors import InvalidOffsetError, OffsetGoneError, OffsetLostError
from headwater.log.offsets import BEGINNING, Names, Offset, Span, Timeline, owners

LINEAGE = (Span(2, 0, 10), Span(5, 10, 20))
FORK = Names(7, LINEAGE)
STREAM = Names(7)


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
    assert list(owners(7, LINEAGE, 0, 30)) == [(2, 10), (5, 20), (7, 30)]
    assert list(owners(7, LINEAGE, 12, 18)) == [(5, 18)]
    assert list(owners(7, LINEAGE, 20, 20)) == []


def a_fork_at_the_beginning_has_the_first_offset_of_its_source() -> None:
    lineage = Names(5).inherited(0).lineage
    fork = Names(7, lineage)
    assert fork.at(0) == Offset(5, 0)
    assert fork.resolve(30, Offset(5, 0)) == 0
    with pytest.raises(InvalidOffsetError):
        fork.resolve(30, Offset(5, 1))  # data that the source appended after the fork
    with pytest.raises(OffsetGoneError):
        fork.resolve(30, Offset(6, 0))  # of a stream that is not an ancestor
    assert list(owners(7, lineage, 0, 30)) == [(7, 30)]
    for position in (0, 4):  # a fork of the fork, before and within its own bytes
        again = Names(9, fork.inherited(position).lineage)
        assert again.at(0) == Offset(5, 0)
        assert again.resolve(30, Offset(5, 0)) == 0
        assert [owner for owner, _ in owners(9, again.lineage, 0, 30)] == ([9] if position == 0 else [7, 9])


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
