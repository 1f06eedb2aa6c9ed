"""Backoff: how long to wait before the next attempt, after failures in a row. Pure: random numbers are arguments.

The wait after the first failure is `first_s`. It grows by `factor` with each further failure, up to `max_s`. `jitter`
is the share of a wait that is random, so that many clients that failed together do not come back together. With 0 the
waits are fixed, as for a task of which there is one in a process; with 1 they are between 0 and the whole wait.

What resets the wait is a success: `Streak.reset`. Each caller says what counts as one:

    caller                              success
    ----------------------------------  -----------------------------------------------------
    requests of the client              a response that is not retried
    reads of streams                    a complete piece or event
    reads and followers of tables       a new row, or a valid response
    appends of a producer               the batch is stored
    claims of a worker                  all pending events of a claim are processed
    Notify                              a 2xx; the NURL is advertised again
    handshakes of followers             any response that is not retried
    views                               the view has advanced
    keys of issuers                     the keys were fetched
    folds                               the fold or the reclaiming of a segment
    backups and standbys                a step without an error
"""

from __future__ import annotations

import math

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """The waits between attempts."""

    first_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.first_s < math.inf and 0 < self.max_s < math.inf):
            raise ValueError(f"waits must be more than 0 and finite, got {self.first_s} and {self.max_s} s")
        if not (1 <= self.factor < math.inf and 0 <= self.jitter <= 1):
            raise ValueError(f"factor must be at least 1 and jitter from 0 to 1, got {self.factor} and {self.jitter}")

    def wait_s(self, failures: int, chance: float = 1.0) -> float:
        """The wait after this many failures in a row. `chance` from 0 to 1 decides its random part."""
        if failures < 1:
            return 0.0
        try:
            longest_s = min(self.max_s, self.first_s * self.factor ** (failures - 1))
        except OverflowError:
            longest_s = self.max_s
        return longest_s * (1 - self.jitter * (1 - chance))


class Streak:
    """Failures in a row, and the wait after each."""

    __slots__ = ("_backoff", "failures")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.failures = 0

    def fail(self, chance: float = 1.0) -> float:
        """Count a failure. Returns the time to wait before the next attempt."""
        self.failures += 1
        return self._backoff.wait_s(self.failures, chance)

    def reset(self) -> None:
        """Note a success: the next failure is the first one."""
        self.failures = 0
