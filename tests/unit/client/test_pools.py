"""The connection pools of a client: many open responses are spread over several."""

from __future__ import annotations

import pytest

from headwater.client import forking
from headwater.client.forking import Pools


@pytest.fixture(autouse=True)
def _two_responses_in_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "POOL_RESPONSES_MAX", 2)


def test_a_pool_is_opened_when_the_others_are_full_and_used_again_when_there_is_room() -> None:
    opened: list[list[str]] = []

    def open_pool() -> list[str]:
        opened.append([])
        return opened[-1]

    pools = Pools(open_pool, None)
    lent = [pools.lend() for _ in range(5)]
    assert [[each.pool is pool for pool in opened].index(True) for each in lent] == [0, 0, 1, 1, 2]
    pools.give_back(lent[1])
    assert pools.lend().pool is opened[0]
    assert pools.lend().pool is opened[2]
    assert pools.lend().pool is opened[3]
    assert pools.to_close() == opened
    assert pools.here() is opened[0]


def test_the_pool_of_the_user_is_the_only_one() -> None:
    pools = Pools(lambda: "another", "given")
    assert {pools.lend().pool for _ in range(5)} == {"given"}
    assert pools.to_close() == []
