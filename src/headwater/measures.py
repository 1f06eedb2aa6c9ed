"""Counters and histograms as plain numbers, which are formatted as metrics when they are requested.

Each part of the server updates its own numbers on the event loop, without a lock. `server/observing` reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds of buckets, in seconds: from an fsync on a fast disk to the fold of a large segment.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)


class Histogram:
    """A histogram: the number of values per bucket. The last bucket has the values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """A copy, for readers in other threads."""
        taken = Histogram(self.bounds)
        taken.counts, taken.total = self.counts.copy(), self.total
        return taken

    @property
    def count(self) -> int:
        return sum(self.counts)
