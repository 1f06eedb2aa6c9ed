"""Readers of a server that is restored to an earlier state: they continue with the bytes that follow, or get 410."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from headwater.client import Client, Position
from headwater.errors import OffsetLostError
from tests.restores import Restorable
from tests.shells import client_of


@contextlib.contextmanager
def connected(shell: str, servers: Restorable) -> Iterator[Client]:
    with servers.serve() as server, client_of(shell, server.url) as client:
        yield client


def position_after(client: Client, count: int) -> str:
    """Where a reader is after this many messages, as text."""
    with client.stream("s").read() as reader:
        for _ in zip(range(count), reader, strict=False):
            """Each message moves the position."""
        return str(reader.position)


def rest(client: Client, position: str) -> list[object]:
    return client.stream("s").read(offset=Position.parse(position)).all()


def test_a_reader_in_the_middle_of_a_batch_continues_or_gets_410(shell: str) -> None:
    servers = Restorable()
    with connected(shell, servers) as client:
        client.stream("s").create()
        client.stream("s").append_many(["a", "b", "c"])
        kept = [position_after(client, count) for count in range(4)]
    servers.save()
    with connected(shell, servers) as client:
        client.stream("s").append_many(["lost 1", "lost 2"])
        lost = [position_after(client, count) for count in (4, 5)]
    with connected(shell, servers) as client:  # without a restore all of them are valid
        assert [len(rest(client, position)) for position in (*kept, *lost)] == [5, 4, 3, 2, 1, 0]
    servers.restore()
    for grown in ("new 1", "new 2", "new 3"):
        with connected(shell, servers) as client:
            client.stream("s").append(grown)
            whole = client.stream("s").read().all()
            assert whole[:4] == ["a", "b", "c", "new 1"]
            for count, position in enumerate(kept):
                assert rest(client, position) == whole[count:]
            for position in lost:
                with pytest.raises(OffsetLostError) as error:
                    rest(client, position)
                assert "restored to an earlier state" in error.value.advice


def test_a_reader_in_the_middle_of_a_response_with_kept_and_lost_messages_gets_410(shell: str) -> None:
    servers = Restorable()
    with connected(shell, servers) as client:
        client.stream("s").create(messages=["a"])
    servers.save()
    with connected(shell, servers) as client:
        client.stream("s").append_many(["lost 1", "lost 2"])
        positions = [position_after(client, count) for count in (1, 2, 3)]  # one response has all three
    servers.restore()
    with connected(shell, servers) as client:
        client.stream("s").append_many(["new 1", "new 2", "new 3"])
        for position in positions:
            with pytest.raises(OffsetLostError):
                rest(client, position)
