"""Snapshots of streams, as tasks make them: from the previous one and new events; old ones are deleted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headwater.client import Client, Producer
from headwater.errors import NetworkError, StaleEpochError
from headwater.pipeline.snapshots import SnapshotMaker
from headwater.protocol.state.events import control_event
from headwater.spark.options import read_options
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture
def path() -> str:
    return f"snapshot-job/{next(_numbers)}"


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def maker(server: Server, *, min_bytes: int = 1, grace_s: float = 3600) -> SnapshotMaker:
    connection = read_options({"url": server.url, "streams": "unused"}, bounded=True)
    return SnapshotMaker(connection, min_bytes, grace_s)


def put(key: str, value: Any) -> dict[str, Any]:
    return {"type": "thing", "key": key, "value": value, "headers": {"operation": "upsert"}}


def snapshots(client: Client, path: str) -> list[tuple[str, bool]]:
    return [(info.path.rpartition("/")[2], info.closed) for info in client.list(f"{path}.snapshots/")]


def texts(client: Client, path: str) -> list[Any]:
    return [event["value"] for event in client.stream(path).read().all() if "value" in event]


def test_a_snapshot_is_made_when_there_are_new_events(server: Server, client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create(messages=[put("a", 1), put("b", 2), put("a", 3)])
    make = maker(server).make
    assert make(client, path) == (True, 0)
    assert make(client, path) == (False, 0)
    first = stream.head().tail_offset
    assert snapshots(client, path) == [(first, True)]
    assert texts(client, f"{path}.snapshots/{first}") == [3, 2]
    stream.append(put("c", 4))
    behind = maker(server, min_bytes=10_000).make(client, path)
    assert behind[0] is False
    assert 0 < behind[1] < 10_000
    assert make(client, path) == (True, 0)
    second = stream.head().tail_offset
    assert texts(client, f"{path}.snapshots/{second}") == [3, 2, 4]


def test_the_next_snapshot_reads_only_new_events(server: Server, client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create(messages=[put(str(n), "x" * 100) for n in range(200)])
    make = maker(server).make
    make(client, path)
    first = stream.head().tail_offset
    stream.append(put("0", "new"))
    reads: list[str] = []

    def note(request: httpx.Request) -> None:
        if request.method == "GET" and request.url.path.endswith(path):
            reads.append(request.url.params["offset"])

    with httpx.Client(event_hooks={"request": [note]}) as http:
        make(Client(server.url, http=http), path)
    assert reads[0] == first
    assert texts(client, f"{path}.snapshots/{stream.head().tail_offset}")[0] == "new"


def test_older_snapshots_are_deleted_after_the_grace_time(server: Server, client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create(messages=[put("a", 1)])
    for number in range(3):
        stream.append(put("a", number))
        maker(server).make(client, path)
    assert len(snapshots(client, path)) == 3
    client.stream(f"{path}.snapshots/0000000000000000_0000000000000007").create()  # of a run that was killed
    maker(server).make(client, path)
    assert len(snapshots(client, path)) == 4
    maker(server, grace_s=-1).make(client, path)
    assert snapshots(client, path) == [(stream.head().tail_offset, True)]


def test_a_killed_run_leaves_no_snapshot(
    server: Server, client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.stream(path)
    stream.create(messages=[put("a", 1)])
    tail = stream.head().tail_offset

    def die(*_: Any) -> None:
        raise NetworkError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("headwater.client.sync.producer.Producer.close_stream", die)
        with pytest.raises(NetworkError):
            maker(server).make(client, path)
    assert snapshots(client, path) == [(tail, False)]
    assert maker(server).make(client, path) == (True, 0)
    assert snapshots(client, path) == [(tail, True)]
    assert texts(client, f"{path}.snapshots/{tail}")[-1] == 1


def test_a_slower_run_does_not_close_the_snapshot(
    server: Server, client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.stream(path)
    stream.create(messages=[put("a", 1)])
    target = f"{path}.snapshots/{stream.head().tail_offset}"
    close_stream = Producer.close_stream

    def overtaken(producer: Producer) -> None:
        producer.flush()
        with client.stream(target).producer("snapshot", epoch=producer.epoch + 1) as other:
            other.append(control_event("snapshot-start"))
        close_stream(producer)

    monkeypatch.setattr(Producer, "close_stream", overtaken)
    with pytest.raises(StaleEpochError):
        maker(server).make(client, path)
    assert not client.stream(target).head().closed


def test_a_stream_that_was_created_again_gets_a_new_snapshot(server: Server, client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create(messages=[put("a", 1), put("b", 1)])
    make = maker(server).make
    make(client, path)
    stream.delete()
    stream.create(messages=[put("c", 1)])
    assert make(client, path) == (True, 0)
    assert len(texts(client, f"{path}.snapshots/{stream.head().tail_offset}")) == 1
    stream.delete()
    assert make(client, path) == (False, 0)
