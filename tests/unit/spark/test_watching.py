"""Waiting for data."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from headwater import limits
from headwater.client import Client, Put
from headwater.spark.watching import TableWatcher, TailWatcher
from tests.servers import Server
from tests.waiting import LIMIT_S


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of watchers, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr("headwater.spark.watching.time", SimpleNamespace(sleep=pauses.append))
    return pauses


def test_the_wait_ends_when_a_stream_has_new_data(server: Server) -> None:
    with Client(server.url) as client:
        stream = client.stream("watching/one")
        stream.create()
        watcher = TailWatcher(client)
        ends = {"watching/one": stream.head().tail_offset}
        assert not watcher.wait(ends, 0.1)
        threads = set(threading.enumerate())
        assert not watcher.wait(ends, 0.1)
        assert set(threading.enumerate()) <= threads  # the request of the first wait is still open
        appending = threading.Thread(target=stream.append, args=(1,))
        appending.start()
        assert watcher.wait(ends, LIMIT_S)
        appending.join()


def test_a_failing_watch_does_not_cause_a_busy_loop(server: Server, pauses: list[float]) -> None:
    with Client(server.url) as client:
        watcher = TailWatcher(client)
        for _ in range(5):
            assert watcher.wait({"watching/missing": "-1"}, LIMIT_S)
    assert pauses == [limits.SPARK_POLL_S] * 5


def test_the_wait_ends_when_a_table_has_new_rows(server: Server) -> None:
    with Client(server.url) as client:
        table = client.table("watching/table")
        table.create()
        watcher = TableWatcher(client)
        assert not watcher.wait({"watching/table": "0"}, 0.1)
        appending = threading.Thread(target=table.append, args=([Put("a", "1")],))
        appending.start()
        assert watcher.wait({"watching/table": "0"}, LIMIT_S)
        appending.join()


def test_a_closed_table_is_not_asked_for_again_at_once(server: Server, pauses: list[float]) -> None:
    with Client(server.url) as client:
        table = client.table("watching/closed")
        table.create()
        table.append([Put("a", "1")])
        table.close()
        assert TableWatcher(client).wait({"watching/closed": "1"}, LIMIT_S)
    assert pauses == [limits.SPARK_POLL_S]
