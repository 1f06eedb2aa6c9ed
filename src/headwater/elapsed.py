"""A clock that only advances, also while the machine is suspended, where the system counts that."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# Seconds. `time.monotonic` stands still on Linux while the machine is suspended, so leases would seem to last longer.
elapsed_s: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
