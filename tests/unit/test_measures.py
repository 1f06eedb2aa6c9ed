"""Histograms of plain numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.measures import COUNTS, SECONDS, Histogram


@given(st.lists(st.floats(0, 100)))
def test_each_value_is_counted_below_the_first_bound_that_it_does_not_exceed(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.add(value)
    assert histogram.count == len(values)
    assert histogram.total == sum(values)
    for index, bound in enumerate(SECONDS):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)


def test_a_copy_does_not_change_any_more() -> None:
    histogram = Histogram(COUNTS)
    histogram.add(3)
    taken = histogram.copy()
    histogram.add(5000)
    assert (taken.count, taken.total, taken.bounds) == (1, 3, COUNTS)
    assert histogram.counts[-1] == 1
