from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.positions import Position


@given(st.text(min_size=1), st.integers(0, 1 << 63))
def test_a_position_can_be_kept_as_text(offset: str, skip: int) -> None:
    position = Position(offset, skip)
    assert Position.parse(str(position)) == position


def test_a_position_keeps_an_offset_after_it() -> None:
    position = Position("5_6").after(3, "5_9")
    assert (str(position), position.reached, Position("5_6").reached) == ("5_6+3@5_9", "5_9", "5_6")
    assert Position.parse("5_6+3@5_9") == position
    assert Position("5_6").after(3, "not of numbers") == Position("5_6", 3)  # on a server without timelines
    assert Position("5_6").after(0, "5_9") == Position("5_6")


def test_the_text_of_a_position() -> None:
    assert (str(Position()), str(Position("7")), str(Position("7", 2))) == ("-1", "7", "7+2")
    assert Position("7", 2).after(3) == Position("7", 5)


@pytest.mark.parametrize(
    "wrong", ["", "+", "+3", "7+", "7+x", "7+-1", "7+²", "7+ 1", "7+1@", "7+1@x", "7+" + "9" * 10_000]
)
def test_invalid_positions(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Position.parse(wrong)


def test_the_position_of_an_offset() -> None:
    assert Position.at("7") == Position("7")
    assert Position.at(Position("7", 2)) == Position("7", 2)
    for wrong in (None, 7):
        with pytest.raises(TypeError, match="an offset is a text"):
            Position.at(wrong)  # type: ignore[arg-type]
