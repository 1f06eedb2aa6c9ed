"""The connection pools of a client: many open responses are spread over several."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headwater.client import forking
from headwater.client.forking import Pools
from tests.shells import SHELLS, client_of


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


class _Socket:
    """The socket of a connection, and how often it was shut down."""

    def __init__(self) -> None:
        self.shut_down = 0

    def get_extra_info(self, name: str) -> _Socket:
        return self

    def shutdown(self, how: int) -> None:
        self.shut_down += 1


@pytest.mark.parametrize("shell", SHELLS)
def test_closing_a_reader_leaves_a_connection_alone_that_it_has_given_back(shell: str) -> None:
    """After the last byte of a response its connection is in the pool, and may be in use by another request."""
    connection = _Socket()
    headers = {"content-type": "application/json", "stream-next-offset": "1", "stream-up-to-date": "true"}

    def answer(request: httpx.Request) -> httpx.Response:
        extensions = {"network_stream": connection}
        return httpx.Response(200, headers=headers, content=b'[{"n":1}]', extensions=extensions)

    kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
    with client_of(shell, "http://server", http=kind(transport=httpx.MockTransport(answer))) as client:
        reader = client.stream("s").read()
        for batch in reader.batches():
            assert batch.items == [{"n": 1}]
            break
        reader.close()
    assert connection.shut_down == 0
