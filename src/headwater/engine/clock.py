"""Time for the engine: wall-clock milliseconds that never jump.

A machine's clock can be set forwards by hours; streams with a time-to-live must not expire for it. The steady
clock runs with the monotonic one and closes in on the wall clock by at most 1 part in 100.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...


class SteadyClock:
    def __init__(self) -> None:
        self._set_s = time.monotonic()
        self._ahead_s = time.time() - self._set_s  # of the monotonic clock

    def now_ms(self) -> int:
        at_s = time.monotonic()
        if at_s - self._set_s >= 1.0:
            self._follow(at_s)
        return int((at_s + self._ahead_s) * 1000)

    def _follow(self, at_s: float) -> None:
        slew_s = (at_s - self._set_s) / 100
        behind_s = time.time() - (at_s + self._ahead_s)
        self._ahead_s += max(-slew_s, min(slew_s, behind_s))
        self._set_s = at_s
