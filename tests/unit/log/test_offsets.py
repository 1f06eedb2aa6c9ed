from __future__ import annotations

import pytest

from headwater.errors import InvalidOffsetError, OffsetGoneError
from headwater.log.offsets import BEGINNING, Offset, Span, inherited, offset_at, owners, resolve

LINEAGE = (Span(2, 0, 10), Span(5, 10, 20))


def test_a_fork_keeps_the_offsets_of_its_ancestors() -> None:
    assert offset_at(7, LINEAGE, 0) == Offset(2, 0)
    assert offset_at(7, LINEAGE, 10) == Offset(2, 10)
    assert offset_at(7, LINEAGE, 20) == Offset(5, 20)
    assert offset_at(7, LINEAGE, 21) == Offset(7, 21)
    assert resolve(7, LINEAGE, 30, Offset(7, 20)) == 20
    with pytest.raises(InvalidOffsetError):
        resolve(7, LINEAGE, 30, Offset(5, 21))  # data that the source appended after the fork


def test_offsets_of_other_incarnations() -> None:
    with pytest.raises(OffsetGoneError):
        resolve(7, (), 30, Offset(6, 3))
    with pytest.raises(InvalidOffsetError, match="another stream"):
        resolve(7, (), 30, Offset(8, 3))
    with pytest.raises(InvalidOffsetError, match="ends at 30"):
        resolve(7, (), 30, Offset(7, 31))
    assert resolve(7, (), 30, BEGINNING) == 0
    assert resolve(7, (), 30, None) == 30


def test_a_fork_inherits_spans_and_reads_from_their_owners() -> None:
    assert inherited(7, LINEAGE, 25) == (*LINEAGE, Span(7, 20, 25))
    assert inherited(7, LINEAGE, 15) == (Span(2, 0, 10), Span(5, 10, 15))
    assert list(owners(7, LINEAGE, 0, 30)) == [(2, 10), (5, 20), (7, 30)]
    assert list(owners(7, LINEAGE, 12, 18)) == [(5, 18)]
    assert list(owners(7, LINEAGE, 20, 20)) == []


def test_a_fork_at_the_beginning_has_the_first_offset_of_its_source() -> None:
    lineage = inherited(5, (), 0)
    assert offset_at(7, lineage, 0) == Offset(5, 0)
    assert resolve(7, lineage, 30, Offset(5, 0)) == 0
    with pytest.raises(InvalidOffsetError):
        resolve(7, lineage, 30, Offset(5, 1))  # data that the source appended after the fork
    with pytest.raises(OffsetGoneError):
        resolve(7, lineage, 30, Offset(6, 0))  # of a stream that is not an ancestor
    assert list(owners(7, lineage, 0, 30)) == [(7, 30)]
    for position in (0, 4):  # a fork of the fork, before and within its own bytes
        again = inherited(7, lineage, position)
        assert offset_at(9, again, 0) == Offset(5, 0)
        assert resolve(9, again, 30, Offset(5, 0)) == 0
        assert [owner for owner, _ in owners(9, again, 0, 30)] == ([9] if position == 0 else [7, 9])
