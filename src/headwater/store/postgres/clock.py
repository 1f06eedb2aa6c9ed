"""The wall clock of all servers of a database: that of PostgreSQL.

Streams expire by it. With clocks of their own, a server whose clock is ahead would delete what another one has just
created. Nobody asks the database for each time: a server adds to its own clock the difference that it has measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headwater import limits
from headwater.store.postgres.connections import Connection, log
from headwater.store.postgres.identity import row_of


class DatabaseClock:
    def __init__(self, own: Callable[[], float] = time.time) -> None:
        """`own` is the wall clock of this machine."""
        self._own = own
        self._ahead_s = 0.0  # by how much the clock of the database is ahead
        self._has_warned = False

    def now_s(self) -> float:
        return self._own() + self._ahead_s

    async def compare(self, connection: Connection) -> None:
        """Measure the difference, again if the round trip was long or a clock was set meanwhile. The error is at most
        half of the shortest round trip."""
        shortest_s = float("inf")
        for _ in range(limits.POSTGRES_CLOCK_TRIES):
            before_s = self._own()
            (database_s,) = await row_of(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
            after_s = self._own()
            trip_s = abs(after_s - before_s)
            if trip_s < shortest_s:
                shortest_s, self._ahead_s = trip_s, database_s - (before_s + after_s) / 2
            if trip_s <= limits.POSTGRES_CLOCK_TRIP_S:
                break
        self._warn_if_far()

    def _warn_if_far(self) -> None:
        is_far = abs(self._ahead_s) > limits.POSTGRES_CLOCK_WARN_S
        if is_far and not self._has_warned:
            direction = "behind" if self._ahead_s > 0 else "ahead of"
            log.warning(
                "the clock of this machine is %.0f s %s that of the database, whose time counts for streams that "
                "expire; set the clocks of both machines (NTP)",
                abs(self._ahead_s),
                direction,
            )
        self._has_warned = is_far
