"""How far a place in a stream is from its end."""

from __future__ import annotations

from headwater.positions import Position
from headwater.spark.positions import EARLIEST_PLACE, bytes_between, parse_place


def lag_of(reached: str | None, end: str) -> int | None:
    """Bytes from a place in a checkpoint to the end of a stream; None if the server's offsets do not count bytes."""
    return bytes_between(EARLIEST_PLACE if reached is None else parse_place(reached), Position(end))
