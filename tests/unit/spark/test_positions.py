"""Positions in streams, and the number of bytes between them."""

from __future__ import annotations

import pytest

from headwater.positions import Position
from headwater.spark.positions import bytes_between, parse_place


@pytest.mark.parametrize(
    ("reached", "end", "size"),
    [
        ("0000000000000001_0000000000000100", "0000000000000001_0000000000000150", 50),
        ("0000000000000001_0000000000000100+3", "0000000000000001_0000000000000150", 50),
        ("0000000000000001_0000000000000150 ended", "0000000000000001_0000000000000150", 0),
        ("0000000000000001_0000000000000150", "0000000000000002_0000000000000020", 20),
        ("0000000000000001_0000000000000010", "0000000000000002_0000000000000020", 20),
        ("-1", "0000000000000001_0000000000000150", 150),
        ("x", "y", None),
    ],
)
def test_bytes_between_two_positions(reached: str, end: str, size: int | None) -> None:
    assert bytes_between(parse_place(reached), Position(end)) == size
