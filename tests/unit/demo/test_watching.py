"""Rates and lags, by a clock that the test sets."""

from __future__ import annotations

from headwater import limits
from headwater.client import Client
from headwater.demo.watching import MessageCounter, Rate


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.per_second(0.0, 0) == 0
    assert rate.per_second(1.0, 100) == 100
    later_s = 1.0 + limits.DEMO_RATE_OVER_S
    assert rate.per_second(later_s, 100) == 0


def test_a_tail_knows_how_far_another_reader_is() -> None:
    with Client("http://127.0.0.1:9") as client:
        tail = MessageCounter(client, "orders")
        assert tail.progress(0.0, 0) == (0, 0.0)
        tail._note([b"1", b"2"], "0000000000000007_0000000000000100", 1.0)
        tail._note([], "0000000000000007_0000000000000100", 1.5)
        tail._note([b"3"], "0000000000000007_0000000000000300", 2.0)
        assert tail.progress(3.0, 0) == (0, 2.0)  # it grows while nothing is read
        assert tail.progress(4.0, 99) == (0, 3.0)
        assert tail.progress(4.0, 100) == (2, 2.0)
        assert tail.progress(5.0, 299) == (2, 3.0)
        assert tail.progress(6.0, 300) == (3, 0.0)
        assert tail.count == 3
