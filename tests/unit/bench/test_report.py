"""Rows, what they are compared with, and their goals."""

from __future__ import annotations

import pytest
from bench.report import Row, comparisons, goal_of, is_met, number, readable, table, times


def test_a_ratio_in_the_row_of_a_peer_is_ours_over_the_peers() -> None:
    ours = Row("appends", "headwater", 300.0, "/s")
    peers = [Row("appends", "node in memory", 100.0, "/s", 3.0, ">= 2"), Row("appends", "node", 10.0, "/s", 30.0)]
    rows = comparisons([ours, *peers])
    assert [(pair.ours, pair.peer, pair.goal) for pair in rows] == [(ours, peers[0], ">= 2"), (ours, peers[1], "")]


def test_a_ratio_in_our_row_is_ours_over_the_row_without_one() -> None:
    base = Row("write", "local parquet", 200.0, "rows/s")
    ours = Row("write", "headwater", 50.0, "rows/s", 0.25)
    (pair,) = comparisons([ours, base])
    assert (pair.ours, pair.peer) == (ours, base)


def test_a_ratio_that_is_a_median_of_its_own_is_found_too() -> None:
    base, ours = Row("appends", "without auth", 100.0, "/s"), Row("appends", "with auth", 101.0, "/s", 0.99)
    (pair,) = comparisons([base, ours])
    assert (pair.ours, pair.peer) == (ours, base)


def test_a_ratio_to_something_else_is_no_comparison() -> None:
    rows = [
        Row("full load", "headwater", 100.0, "/s", panel="p"),
        Row("half", "headwater", 49.0, "/s", 0.98, panel="p"),
    ]
    assert comparisons(rows) == []


def test_of_latencies_the_lower_is_better() -> None:
    ours, peer = Row("delivery", "headwater", 2.0, "ms"), Row("delivery", "node", 6.0, "ms", 3.0)
    (pair,) = comparisons([ours, peer])
    assert (pair.ours, pair.peer) == (ours, peer)


def test_rows_of_different_benches_are_compared_in_a_panel_only() -> None:
    rows = [Row("alone", "headwater", 100.0, "/s"), Row("disturbed", "headwater", 50.0, "/s", 0.5)]
    assert comparisons(rows) == []
    (pair,) = comparisons([Row(row.bench, row.server, row.value, row.unit, row.ratio, panel="p") for row in rows])
    assert (pair.ours.bench, pair.peer.bench) == ("disturbed", "alone")


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        ("≥ 2", 2.0, True),
        (">= 500,000", 499_999.0, False),
        ("at least 0.95", 0.96, True),
        ("< 50", 50.0, False),
        ("<= 1000", 1000.0, True),
        ("Rust server published: 1.5", 1.0, None),
        ("flat", 1.0, None),
        ("", 1.0, None),
    ],
)
def test_goals(goal: str, value: float, met: bool | None) -> None:
    assert is_met(Row("bench", "headwater", value, "/s", goal=goal)) is met
    assert is_met(Row("bench", "headwater", 7.0, "/s", ratio=value, goal=goal)) is met


def test_goals_are_written_alike() -> None:
    goals = [goal_of(text) for text in (">= 500000", "≥ 500,000", "at least 500000")]
    assert {goal.text for goal in goals if goal} == {"≥ 500,000"}


def test_numbers_are_for_people() -> None:
    assert [number(value) for value in (8_521_205.39, 866.63, 75.595, 0.0459)] == ["8,521,205", "867", "75.6", "0.0459"]
    assert [times(ratio) for ratio in (0.494, 2.326, 45.75, 1234.5)] == ["0.49×", "2.33×", "45.8×", "1,234×"]
    assert readable("SSE, 1 subscribers of 1000, 10,000 in 0.12345") == "SSE, 1 subscriber of 1,000, 10,000 in 0.12345"


def test_the_table_says_whether_a_goal_was_met() -> None:
    text = table([Row("catch-up", "headwater", 8_521_205.39, "rows/s", 0.3, ">= 0.33", "warm")])
    assert text.splitlines()[2].split() == [
        "catch-up",
        "headwater",
        "0.30×",
        "8,521,205",
        "rows/s",
        "≥",
        "0.33",
        "no",
        "warm",
    ]
