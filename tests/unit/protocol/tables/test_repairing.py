"""What a mirror lacks after rows of its source were removed: it gets the live rows of the source, or an error."""

from __future__ import annotations

import random

import pytest

from headwater.errors import HistoryChangedError
from headwater.protocol.tables.repairing import changes_between, live_keys
from headwater.protocol.tables.rows import ADD, DELETE, Row


def row(seqno: int, key: str, *, deleted: bool = False) -> Row:
    return Row(
        seqno, f"2026-01-08T00:00:{seqno % 60:02d}Z", DELETE if deleted else ADD, key, "" if deleted else f"{seqno}"
    )


def live_of(rows: list[Row]) -> dict[str, Row]:
    live: dict[str, Row] = {}
    for one in rows:
        live.pop(one.key, None)
        if one.action == ADD:
            live[one.key] = one
    return live


@pytest.mark.parametrize("seed", range(100))
def test_a_mirror_of_a_compacted_table_ends_with_its_live_rows(seed: int) -> None:
    """The source keeps live rows as they are, and everything from `first` on."""
    chance = random.Random(seed)
    rows = [row(n, f"k{chance.randint(0, 12)}", deleted=chance.random() < 0.4) for n in range(1, 80)]
    reached, first = chance.randint(1, 40), chance.randint(42, 79)
    mirror = rows[:reached]
    lacking = changes_between(live_of(mirror), mirror[-1], live_of(rows).values(), first)
    seqnos = [one.seqno for one in [*mirror, *lacking]]
    assert seqnos == sorted(set(seqnos))
    assert seqnos[-1] < first
    timestamps = [one.timestamp for one in lacking]
    assert set(timestamps) <= {one.timestamp for one in rows}
    repaired = [*mirror, *lacking, *rows[first - 1 :]]
    assert live_of(repaired) == live_of(rows)
    again = changes_between(live_of([*mirror, *lacking]), [*mirror, *lacking][-1], live_of(rows).values(), first)
    assert again == []  # it was killed before the next row arrived


def test_more_keys_that_are_gone_than_rows_that_were_lost_are_an_error() -> None:
    """They were trimmed and not deleted, so the lost rows do not say what to do with them."""
    mirror = [row(n, f"k{n}") for n in range(1, 9)]
    with pytest.raises(HistoryChangedError, match=r"rows 9 to 11 were removed .* 8 keys of the mirror"):
        changes_between(live_of(mirror), mirror[-1], [row(12, "new")], 12)


def test_live_keys() -> None:
    keys = {"old"}
    live_keys(keys, [row(1, "a"), row(2, "b"), row(3, "a", deleted=True), row(4, "old", deleted=True)])
    assert keys == {"b"}
