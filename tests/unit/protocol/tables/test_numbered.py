"""Bodies of appends to mirrors: the last SeqNo, or the number of the first invalid line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidChangeError, TooManyMessagesError
from headwater.protocol.tables.rows import Row, check_rows, format_row


def body(seqnos: list[int]) -> bytes:
    return b"".join(format_row(Row(seqno, "2026-01-08T00:00:00Z", "+", "k", "r")) for seqno in seqnos)


@given(st.lists(st.integers(1, 2**63 - 1), unique=True, max_size=20), st.data())
def test_rows_must_increase(seqnos: list[int], data: st.DataObject) -> None:
    ordered = sorted(seqnos)
    assert check_rows(body(ordered), 0, 20) == (ordered[-1] if ordered else 0)
    shuffled = data.draw(st.permutations(seqnos))
    if shuffled != ordered:
        first = next(at for at in range(1, len(shuffled)) if shuffled[at] < shuffled[at - 1])
        with pytest.raises(InvalidChangeError) as refused:
            check_rows(body(shuffled), 0, 20)
        assert refused.value.line == first + 1


def test_rows_come_after_the_row_that_the_request_names() -> None:
    assert check_rows(b"", 7, 1) == 7
    assert check_rows(body([8]), 7, 1) == 8
    with pytest.raises(InvalidChangeError, match="line 1: row 7 does not come after row 7"):
        check_rows(body([7]), 7, 1)
    with pytest.raises(TooManyMessagesError):
        check_rows(body([8, 9]), 7, 1)


def fault_line(data: bytes) -> int:
    try:
        check_rows(data, 0, 100)
    except InvalidChangeError as error:
        return error.line
    return 0


@given(st.binary(min_size=1, max_size=60))
def test_invalid_rows_are_refused_with_their_line(data: bytes) -> None:
    line = fault_line(data)
    assert line <= data.count(b"\n") + 1
    assert line or data.endswith(b"\n")
