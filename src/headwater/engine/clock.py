"""The clock of the engine: wall-clock milliseconds that do not jump forward.

If the wall clock is set forward by hours, streams with a time-to-live must not expire. So the steady clock counts the
time since boot, including suspension, and approaches the wall clock by at most 1 %. It follows a wall clock that is
behind by more than a minute at once, because that cannot cause an early expiry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from headwater import limits


class Clock(Protocol):
    def now_ms(self) -> int: ...


# Monotonic seconds, including time in suspension if the system counts it.
elapsed_s: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class SteadyClock:
    def __init__(self, elapsed: Callable[[], float] = elapsed_s, wall: Callable[[], float] = time.time) -> None:
        self._elapsed = elapsed
        self._wall = wall
        self._set_s = elapsed()
        self._ahead_s = wall() - self._set_s  # difference to the elapsed time

    def now_ms(self) -> int:
        at_s = self._elapsed()
        if at_s - self._set_s >= 1.0:
            self._follow(at_s)
        return int((at_s + self._ahead_s) * 1000)

    def _follow(self, at_s: float) -> None:
        slew_s = (at_s - self._set_s) / 100
        behind_s = self._wall() - (at_s + self._ahead_s)
        if behind_s < -limits.CLOCK_STEP_BACK_S:
            self._ahead_s += behind_s
        else:
            self._ahead_s += max(-slew_s, min(slew_s, behind_s))
        self._set_s = at_s
