"""How far a place in a stream is from its end."""

from __future__ import annotations

from headwater.spark.positions import byte_position, incarnation, parse_place


def lag_of(reached: str | None, end: str) -> int | None:
    """Bytes from a place in a checkpoint to the end of a stream; None if the server's offsets do not count bytes."""
    tail = byte_position(end)
    if tail is None:
        return None
    place = parse_place(reached) if reached is not None else None
    if place is None or incarnation(place.offset) != incarnation(end):
        return tail
    return max(0, tail - (byte_position(place.offset) or 0))
