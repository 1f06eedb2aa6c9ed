from __future__ import annotations

from collections.abc import Callable

from headwater.limits import TURN_REQUESTS_MIN
from headwater.server.native.turns import Turn


class Loop:
    """A loop whose time passes with the work that it does: `cost_s` to begin a request, `later_s` to answer it."""

    def __init__(self, cost_s: float, later_s: float, refuse_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.cost_s, self.later_s, self.refuse_s = cost_s, later_s, refuse_s
        self.called: list[Callable[[], None]] = []
        self.turn = Turn(0.2, self.called.append, lambda: self.now_s)

    def run(self, requests: int, *, pause_s: float = 0.0, late_s: float = 0.0) -> int:
        """One turn in which so many requests have arrived; how many of them were begun. The machine pauses after the
        first requests, and after all of them."""
        begun = 0
        for number in range(requests):
            if self.turn.begin():
                begun += 1
                self.now_s += self.cost_s + (pause_s if number == 80 else 0.0)
            else:
                self.now_s += self.refuse_s / 2
        called, self.called[:] = list(self.called), []
        for callback in called:
            callback()
        self.now_s += begun * self.later_s + (requests - begun) * self.refuse_s / 2 + late_s
        return begun


def test_few_requests_are_begun_however_long_they_take() -> None:
    loop = Loop(cost_s=1.0, later_s=1.0)
    for _ in range(5):
        assert loop.run(TURN_REQUESTS_MIN) == TURN_REQUESTS_MIN


def test_many_quick_requests_are_begun() -> None:
    loop = Loop(cost_s=0.000_01, later_s=0.000_02)
    for _ in range(5):
        assert loop.run(5_000) == 5_000
    assert loop.turn.retry_s == 1


def test_as_many_are_begun_as_can_be_answered_in_time() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_4)  # 400 take 0.2 s
    loop.run(10_000)
    for _ in range(10):
        assert 380 <= loop.run(10_000) <= 420
    assert loop.turn.retry_s == 3


def test_the_time_that_refusals_take_is_not_held_against_those_that_are_answered() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_4, refuse_s=0.000_1)
    loop.run(10_000)
    for _ in range(10):
        assert 380 <= loop.run(10_000) <= 420


def test_whoever_comes_after_the_overload_is_not_refused() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_4)
    for _ in range(3):
        loop.run(10_000)
    loop.run(0)  # the loop was idle
    assert loop.run(400) == 400
    assert loop.called  # and the turns go on to be counted
    loop.run(10)
    loop.run(0)
    assert not loop.called


def test_a_pause_of_the_machine_is_no_overload() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_2)
    assert loop.run(300) == 300
    assert loop.run(300, pause_s=1.0) == 300  # while requests are begun
    assert loop.run(300, late_s=1.0) == 300  # while they are answered
    assert loop.run(300) == 300
    assert loop.run(300, late_s=1.0) == 300
    assert loop.run(5_000) < 2_100  # overload is still refused


def test_pauses_that_go_on_are_overload() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_2)
    for _ in range(3):
        loop.run(600, late_s=1.0)
    assert loop.run(600) < 200


def test_the_wait_grows_with_what_is_refused() -> None:
    loop = Loop(cost_s=0.000_1, later_s=0.000_4)
    loop.run(3_000)
    waits = []
    for requests in (410, 800, 1_600, 40_000):
        for _ in range(3):
            loop.run(requests)
        waits.append(loop.turn.retry_s)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1, 3)
    assert dict(loop.turn.refusal().headers)["retry-after"] == "3"


def test_each_refusal_is_an_answer_of_its_own() -> None:
    turn = Turn(0.2)
    turn.refusal().headers += (("x-request-id", "1"),)
    assert "x-request-id" not in dict(turn.refusal().headers)
