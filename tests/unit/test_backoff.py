"""Backoff: waits, their bounds, and what resets them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.backoff import Backoff, Streak


def test_the_wait_grows_by_the_factor_up_to_the_greatest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.wait_s(failures) for failures in range(7)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert [Backoff(1, 10, factor=3).wait_s(failures) for failures in (1, 2, 3, 4)] == [1, 3, 9, 10]
    assert Backoff(2, 1).wait_s(1) == 1


def test_jitter_is_the_share_of_the_wait_that_is_random() -> None:
    for jitter, least_s in ((0.0, 4.0), (0.5, 2.0), (1.0, 0.0)):
        backoff = Backoff(1, 10, jitter=jitter)
        assert [backoff.wait_s(3, chance) for chance in (0.0, 0.5, 1.0)] == [least_s, (least_s + 4) / 2, 4.0]


def test_a_success_resets_the_wait() -> None:
    streak = Streak(Backoff(1, 10))
    assert [streak.fail(), streak.fail(), streak.failures] == [1, 2, 2]
    streak.reset()
    assert (streak.failures, streak.fail()) == (0, 1)


@pytest.mark.parametrize(
    "values",
    [
        (0, 1, 2.0, 0.0),
        (1, 0, 2.0, 0.0),
        (math.inf, 1, 2.0, 0.0),
        (1, math.nan, 2.0, 0.0),
        (1, 1, 0.5, 0.0),
        (1, 1, 2.0, 1.1),
        (1, 1, 2.0, -0.1),
    ],
)
def test_values_that_make_no_wait_are_refused(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Backoff(*values)


@given(
    st.builds(Backoff, st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.floats(1, 100), st.floats(0, 1)),
    st.integers(1, 10**12),
    st.floats(0, 1),
)
def test_a_wait_is_never_longer_than_the_greatest(backoff: Backoff, failures: int, chance: float) -> None:
    assert 0 <= backoff.wait_s(failures, chance) <= backoff.max_s
    assert backoff.wait_s(failures, chance) <= backoff.wait_s(failures + 1, chance)
