from __future__ import annotations

import pytest

from headwater.server.rates import TokenBuckets


def test_a_burst_of_one_second_then_the_rate() -> None:
    buckets = TokenBuckets(10)
    for _ in range(10):
        assert buckets.wait_s("a", 1, 100.0) == 0
        buckets.take("a", 1, 100.0)
    assert buckets.wait_s("a", 1, 100.0) == pytest.approx(0.1)
    assert buckets.wait_s("b", 1, 100.0) == 0
    assert buckets.wait_s("a", 1, 100.1) == 0


def test_whoever_waits_as_told_is_admitted() -> None:
    buckets = TokenBuckets(7)
    now_s, taken = 50.0, 0
    for _ in range(100):
        wait_s = buckets.wait_s("a", 3, now_s)
        now_s += wait_s
        assert buckets.wait_s("a", 3, now_s) == 0
        buckets.take("a", 3, now_s)
        taken += 3
    assert taken / (now_s - 50.0) == pytest.approx(7, rel=0.05)


def test_what_costs_more_than_a_full_bucket_leaves_it_in_debt() -> None:
    buckets = TokenBuckets(100)
    assert buckets.wait_s("a", 1_000, 5.0) == 0
    buckets.take("a", 1_000, 5.0)
    assert buckets.wait_s("a", 1, 5.0) == pytest.approx(9.01)
    assert buckets.wait_s("a", 1_000, 14.0) == pytest.approx(1.0)


def test_a_rate_below_one_a_second_admits_one() -> None:
    buckets = TokenBuckets(0.5)
    assert buckets.wait_s("a", 1, 1.0) == 0
    buckets.take("a", 1, 1.0)
    assert buckets.wait_s("a", 1, 1.0) == pytest.approx(2.0)


def test_a_clock_that_begins_at_zero_gives_no_credit() -> None:
    buckets = TokenBuckets(1)
    assert buckets.wait_s("a", 1, 0.0) == 0
    buckets.take("a", 1, 0.0)
    assert buckets.wait_s("a", 1, 0.0) == pytest.approx(1.0)


def test_their_number_is_bounded_and_the_least_recently_used_is_forgotten() -> None:
    buckets = TokenBuckets(1, keys_max=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 1, 1.0)
    assert len(buckets) == 2
    assert buckets.wait_s("b", 1, 1.0) == 0
    assert buckets.wait_s("a", 1, 1.0) > 1
