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
        self._now_s = time.time()
        self._at_s = time.monotonic()

    def now_ms(self) -> int:
        at_s = time.monotonic()
        elapsed_s = at_s - self._at_s
        if elapsed_s > 0:
            self._at_s = at_s
            behind_s = time.time() - (self._now_s + elapsed_s)
            slew_s = elapsed_s / 100
            self._now_s += elapsed_s + max(-slew_s, min(slew_s, behind_s))
        return int(self._now_s * 1000)
