"""Moments: the times that each batch of the journal carries. `engine/clock.py` defines them."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """When a batch was written, by three clocks."""

    at_ms: int  # the engine's time, which counts elapsed time and never decreases
    wall_ms: int  # the wall clock, which may be set to any time
    up_ms: int  # the time since the machine was started
    boot: int  # identifies the start of the machine; 0 if unknown


NEVER = Moment(0, 0, 0, 0)
