"""Pieces of received bodies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.joining import Joined
from headwater.limits import JOINED_PIECE_BYTES

SIZES = st.sampled_from([0, 1, 2, 100, JOINED_PIECE_BYTES - 1, JOINED_PIECE_BYTES, 3 * JOINED_PIECE_BYTES])


@given(st.lists(SIZES, max_size=30))
def test_nothing_is_lost_and_few_objects_are_held(sizes: list[int]) -> None:
    pieces = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    joined = Joined()
    for piece in pieces:
        joined.add(piece)
    assert joined.size == sum(sizes)
    assert len(joined._pieces) <= joined.size / JOINED_PIECE_BYTES
    assert joined.take() == b"".join(pieces)
    assert joined.size == 0
    assert joined.take() == b""


def test_one_large_piece_is_not_copied() -> None:
    piece = b"x" * JOINED_PIECE_BYTES
    assert Joined(piece).take() is piece
