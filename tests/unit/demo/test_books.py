"""The plain fold, and the comparisons with it, which must find every difference."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.demo.books import Books, check_quarantine, check_state, fold_events, fold_rows, fold_table
from headwater.protocol.tables.rows import Row


def event(operation: str, version: Any, key: str = "a", **more: Any) -> dict[str, Any]:
    value = {"version": version, **more}
    return {"type": "order", "key": key, "value": value, "headers": {"operation": operation}}


def fold(*messages: Any) -> Books:
    books = Books()
    for message in messages:
        books.note("orders", message)
    return books


def test_the_greatest_version_counts() -> None:
    books = fold(event("insert", 1), event("update", 3, n=3), event("update", 2, n=2))
    assert books.state() == {("orders", "order", "a"): {"version": 3, "n": 3}}
    assert books.superseded == 1


def test_of_equal_versions_the_first_counts() -> None:
    books = fold(event("insert", 1, n=1), event("insert", 1, n=2))
    assert books.state()["orders", "order", "a"]["n"] == 1


def test_a_late_event_does_not_bring_back_what_was_deleted() -> None:
    assert not fold(event("insert", 1), event("delete", 3), event("update", 2)).state()
    assert not fold(event("delete", 3), event("insert", 1)).state()
    assert fold(event("delete", 3), event("insert", 4)).state()


@pytest.mark.parametrize(
    "message",
    [
        "text",
        None,
        [],
        {},
        event("replace", 1),
        event("insert", "1"),
        event("insert", None),
        {**event("insert", 1), "headers": {}},
        {**event("insert", 1), "key": None},
        {**event("delete", 1), "value": None},
    ],
)
def test_what_cannot_be_applied_is_bad(message: Any) -> None:
    books = fold(message)
    assert books.bad == [("orders", message)]
    assert not books.state()


def test_states_are_compared_by_key_and_value() -> None:
    expected = {"a": {"n": 1}, "b": {"n": 2}}
    assert check_state("x", dict(expected), expected).is_right
    assert check_state("x", {"a": {"n": 1}}, expected).wrong == 1
    assert check_state("x", {**expected, "c": {}}, expected).wrong == 1
    assert check_state("x", {**expected, "a": {"n": 2}}, expected).wrong == 1


def test_a_quarantine_has_each_bad_event_once() -> None:
    bad = [("orders", "text"), ("orders", event("replace", 1)), ("stock", "text")]
    kept = [(stream, {**one, "headers": {}} if isinstance(one, dict) else one) for stream, one in reversed(bad)]
    assert check_quarantine("x", kept, bad).is_right
    assert check_quarantine("x", kept[1:], bad).wrong == 1
    assert check_quarantine("x", [*kept, kept[0]], bad).wrong == 1
    assert check_quarantine("x", [*kept[1:], ("orders", "other")], bad).wrong == 2


def test_results_are_folded_from_what_they_are() -> None:
    rows = [{"stream": "orders", "type": "order", "key": "a", "value": '{"n":1}', "order": 7}]
    assert fold_rows(rows) == {("orders", "order", "a"): {"n": 1}}
    assert fold_events([event("insert", 1), event("insert", 1, "b"), event("delete", 2)]) == {"b": {"version": 1}}
    table = [Row(1, "", "+", "a", '{"n":1}'), Row(2, "", "+", "b", "{}"), Row(3, "", "-", "b", "")]
    assert fold_table(table) == {"a": {"n": 1}}
    with pytest.raises(KeyError):
        fold_events([event("delete", 1)])
    with pytest.raises(KeyError):
        fold_table([Row(1, "", "-", "a", "")])
