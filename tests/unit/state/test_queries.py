"""Ordered queries keep their order from change to change; a plain sort of all rows is the oracle."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest

from headwater.state.queries import Query

Row = dict[str, Any]


def ordered(*, descending: bool = False, limit: int | None = None, order: Any = None) -> Query[Row]:
    return Query(
        lambda row: row["n"] != 0,
        order or (lambda row: row["n"]),
        contextlib.nullcontext(),
        descending=descending,
        limit=limit,
    )


def plainly_sorted(rows: dict[str, Row], *, descending: bool, limit: int | None) -> list[tuple[str, Row]]:
    pairs = sorted((key, row) for key, row in rows.items() if row["n"] != 0)
    pairs.sort(key=lambda pair: pair[1]["n"], reverse=descending)
    return pairs[:limit]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [None, 0, 7])
@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_a_sort(seed: int, descending: bool, limit: int | None) -> None:
    chance = random.Random(seed)
    rows: dict[str, Row] = {str(number): {"n": chance.randrange(20)} for number in range(chance.choice([0, 5, 400]))}
    query = ordered(descending=descending, limit=limit)
    query.fill(rows)
    for _ in range(30):
        for _ in range(chance.choice([0, 1, 2, 5, 60])):
            key = str(chance.randrange(500))
            if chance.random() < 0.3:
                rows.pop(key, None)
                query.moved(key, None, gone=True)
            else:
                rows[key] = {"n": chance.randrange(20)}
                query.moved(key, rows[key], gone=False)
        assert query.items() == plainly_sorted(rows, descending=descending, limit=limit)
    query.refill({})
    assert query.items() == []


def test_one_change_does_not_sort_all_rows_again() -> None:
    calls: list[Row] = []

    def order(row: Row) -> Any:
        calls.append(row)
        return row["n"]

    query = ordered(order=order)
    query.fill({str(number): {"n": number + 1} for number in range(1000)})
    assert len(query.items()) == 1000
    calls.clear()
    query.moved("500", {"n": 2000}, gone=False)
    assert query.keys()[-1] == "500"
    assert calls == [{"n": 2000}]


def test_values_that_cannot_be_compared_are_an_error_until_they_are_gone() -> None:
    query = ordered()
    query.fill({str(number): {"n": number + 1} for number in range(100)})
    assert query.count() == len(query)
    query.moved("7", {"n": "text"}, gone=False)
    for _ in range(2):
        with pytest.raises(TypeError):
            query.items()
    query.moved("7", {"n": 1000}, gone=False)
    assert query.keys()[-1] == "7"


def test_values_without_an_order_lose_no_row() -> None:
    rows = {str(number): {"n": float(number + 1)} for number in range(200)}
    query = ordered()
    query.fill(rows)
    for key in ("3", "150", "42", "3", "150"):
        rows[key] = {"n": math.nan if rows[key]["n"] == rows[key]["n"] else 5.0}
        query.moved(key, rows[key], gone=False)
        assert sorted(query.keys()) == sorted(rows)
