from __future__ import annotations

import random

import pytest

from headwater.limits import SORTED_RUN_KEYS
from headwater.store.sorted_keys import SortedKeys, page_of


@pytest.mark.parametrize("seed", range(5))
def test_keys_stay_sorted(seed: int) -> None:
    chance = random.Random(seed)
    keys, expected = SortedKeys[int](), set[int]()
    for _ in range(12 * SORTED_RUN_KEYS):
        key = chance.randrange(10 * SORTED_RUN_KEYS)
        if chance.random() < 0.6:
            keys.add(key)
            expected.add(key)
        else:
            keys.discard(key)
            expected.discard(key)
    in_order = sorted(expected)
    assert len(keys) == len(expected)
    assert keys.since(-1, 10**9) == in_order
    for _ in range(200):
        key, limit = chance.randrange(-5, 10 * SORTED_RUN_KEYS + 5), chance.randrange(1, 3 * SORTED_RUN_KEYS)
        assert keys.past(key, limit) == [other for other in in_order if other > key][:limit]
        assert keys.since(key, limit) == [other for other in in_order if other >= key][:limit]


def test_ascending_and_descending_keys() -> None:
    count = 5 * SORTED_RUN_KEYS
    for order in (range(count), reversed(range(count))):
        keys = SortedKeys[int]()
        for key in order:
            keys.add(key)
        assert keys.since(0, count) == list(range(count))
        for key in range(count):
            keys.discard(key)
            keys.discard(key)
        assert (len(keys), keys.since(0, 1)) == (0, [])


def test_pages_of_a_prefix() -> None:
    keys = SortedKeys[str]()
    for key in ("a", "b/1", "b/2", "b/3", "c"):
        keys.add(key)
    assert page_of(keys, "", "", 2) == ["a", "b/1"]
    assert page_of(keys, "b/", "", 2) == ["b/1", "b/2"]
    assert page_of(keys, "b/", "b/1", 5) == ["b/2", "b/3"]
    assert page_of(keys, "b/", "b/3", 5) == []
    assert page_of(keys, "b/", "c", 5) == []
    assert page_of(keys, "x", "", 5) == []
