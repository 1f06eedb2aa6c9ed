"""What time is. This is the only module that decides it.

*The engine's time* is the time of records, TTLs, expiry times and the expiry of producers. It counts elapsed time and
never decreases, also across restarts:

- While the server runs, it counts the time since boot, including suspension, and approaches the wall clock by at most
  1 %. A wall clock that is set forward by days expires nothing, and one that is set back makes no record older than the
  ones before it.
- After a restart without a reboot, it continues after the last batch of the journal by the time that has elapsed since
  boot, whatever the wall clock says.
- After a reboot, the elapsed time is unknown. It is the wall clock, but not before the last batch of the journal.

*The wall clock* is used only where a person or another system names a time of the wall clock: each batch of the journal
also has the wall-clock time at which it was written, for `restore --at`. It may jump in both directions.

Commands carry the engine's time, and events keep it. The store and the fold read no clock: each batch carries a
`Moment` of this clock, so a replay has the same result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headwater.elapsed import elapsed_s
from headwater.log.moments import NEVER, Moment

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    def now_ms(self) -> int:
        """The engine's time."""

    def moment(self) -> Moment:
        """The time of a batch of the journal."""


def boot_number() -> int:
    """A number that identifies the boot of the machine; 0 if the system has none."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).int >> 64
    except (OSError, ValueError):
        return 0


class SteadyClock:
    """The clock of a server whose journal ends with a batch of the moment `after`."""

    def __init__(
        self,
        after: Moment = NEVER,
        elapsed: Callable[[], float] = elapsed_s,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], int] = boot_number,
    ) -> None:
        self._elapsed = elapsed
        self._wall = wall
        self._boot = boot()
        self._set_s = elapsed()
        start_s = max(wall(), after.at_ms / 1000)
        if after.boot == self._boot != 0 and self._set_s >= after.up_ms / 1000:
            start_s = after.at_ms / 1000 + self._set_s - after.up_ms / 1000
        self._ahead_s = start_s - self._set_s  # difference to the elapsed time
        self._last_ms = after.at_ms

    def now_ms(self) -> int:
        at_s = self._elapsed()
        if at_s - self._set_s >= 1.0:
            self._follow(at_s)
        now_ms = int((at_s + self._ahead_s) * 1000)
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms

    def _follow(self, at_s: float) -> None:
        slew_s = (at_s - self._set_s) / 100
        behind_s = self._wall() - (at_s + self._ahead_s)
        self._ahead_s += max(-slew_s, min(slew_s, behind_s))
        self._set_s = at_s

    def moment(self) -> Moment:
        return Moment(self.now_ms(), max(0, int(self._wall() * 1000)), int(self._elapsed() * 1000), self._boot)
