"""Waiting for data."""

from __future__ import annotations

import threading
import time

import pytest

from headwater.client import Client, Put
from headwater.spark.watching import TableWatcher, Watcher
from tests.servers import Server


def test_the_wait_ends_when_a_stream_has_new_data(server: Server) -> None:
    with Client(server.url) as client:
        stream = client.stream("watching/one")
        stream.create()
        watcher = Watcher(client)
        ends = {"watching/one": stream.head().tail_offset}
        assert not watcher.wait(ends, 0.1)
        threads = threading.active_count()
        assert not watcher.wait(ends, 0.1)
        assert threading.active_count() == threads
        later = threading.Timer(0.1, lambda: stream.append(1))
        later.start()
        assert watcher.wait(ends, 60)
        later.join()


@pytest.mark.slow
def test_a_failing_watch_does_not_cause_a_busy_loop(server: Server) -> None:
    with Client(server.url) as client:
        watcher = Watcher(client)
        ends = {"watching/missing": "-1"}
        started = time.monotonic()
        for _ in range(5):
            watcher.wait(ends, 0.5)
        assert time.monotonic() - started > 0.7


def test_the_wait_ends_when_a_table_has_new_rows(server: Server) -> None:
    with Client(server.url) as client:
        table = client.table("watching/table")
        table.create()
        watcher = TableWatcher(client)
        assert not watcher.wait({"watching/table": "0"}, 0.1)
        later = threading.Timer(0.1, lambda: table.append([Put("a", "1")]))
        later.start()
        assert watcher.wait({"watching/table": "0"}, 60)
        later.join()
        table.close()
        started = time.monotonic()
        assert watcher.wait({"watching/table": "1"}, 5)
        assert time.monotonic() - started > 0.15, "a closed table must not be asked for again at once"
