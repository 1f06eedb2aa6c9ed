"""Batches of many targets and of many bytes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import httpx
import msgspec
import pyarrow as pa
import pytest

from headwater import limits
from headwater.client import Client, ProducerTuple
from headwater.errors import DataLossError, SchemaError
from headwater.log.content import ContentKind
from headwater.protocol.streams.composing import COMPOSE_TYPE
from headwater.spark.appending import Appending, joined, runs_of
from headwater.spark.ledger import Listed
from headwater.spark.options import WriteOptions, write_options
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Gatherer, RowChunk, place_of
from headwater.spark.tables.options import table_write_options
from headwater.spark.targets import check_target_type
from tests.servers import Server, serving
from tests.waiting import LIMIT_S

_numbers = itertools.count()
TARGETS = 40
TASKS = 3
REQUEST_BYTES = 2000


class Watching(httpx.HTTPTransport):
    """Records appends and creates and the maximum number of concurrent ones, and crashes after some.

    An append waits until there were `together` requests at once.
    """

    def __init__(self, lives: int = 1 << 30, together: int = 1) -> None:
        super().__init__(verify=False)
        self.requests: list[str] = []
        self.most = 0
        self._lives = lives
        self._together = together
        self._under_way = 0
        self._changed = threading.Condition()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self._changed:
            self._lives -= 1
            if self._lives < 0:
                raise KeyboardInterrupt
            if "/_spark/" not in request.url.path:
                self.requests.append(request.method)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            self._changed.notify_all()
            if request.method == "POST" and "/_spark/" not in request.url.path:
                self._changed.wait_for(lambda: self.most >= self._together, LIMIT_S)
        try:
            return super().handle_request(request)
        finally:
            with self._changed:
                self._under_way -= 1


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with httpx.Client(transport=httpx.HTTPTransport(verify=False)) as http:
        yield Client(server.url, http=http)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_INLINE_BYTES", 20)
    monkeypatch.setattr("headwater.limits.SPARK_PUBLISHED_BYTES", 3 * REQUEST_BYTES)


def options_of(server: Server) -> WriteOptions:
    return write_options({"url": server.url, "maxRequestBytes": str(REQUEST_BYTES)})


def gathered(client: Client, writer: str, batch: int = 0) -> list[list[RowChunk]]:
    """Each task has four rows for each target, which are numbered in the order of the partitions."""
    parts = []
    for task in range(TASKS):
        gatherer = Gatherer(client, ContentKind.JSON, REQUEST_BYTES, place_of(writer, batch, task))
        for half, target in itertools.product(range(2), range(TARGETS)):
            rows = [b"%d" % (100 * batch + 4 * task + 2 * half + n) for n in range(2)]
            gatherer.add(f"{writer}/{target:02d}", pa.array(rows, pa.binary()))
        parts.append(gatherer.finish())
    return parts


def published(client: Client, writer: str) -> list[list[int]]:
    return [client.stream(f"{writer}/{target:02d}").read().all() for target in range(TARGETS)]


def test_many_targets_at_a_time_each_in_order(server: Server, client: Client) -> None:
    writer = f"appending-{next(_numbers)}"
    with httpx.Client(transport=(watched := Watching(together=3))) as http:
        for batch in range(2):
            watched.requests.clear()
            parts = gathered(client, writer, batch)
            Publisher(Client(server.url, http=http), options_of(server), writer).publish(batch, parts)
            assert sum(map(len, parts)) >= TASKS * TARGETS
            assert watched.requests.count("POST") == TARGETS  # what tasks have for a target is appended together
            assert watched.requests.count("PUT") == (TARGETS if batch == 0 else 0)
            assert watched.requests.count("HEAD") == 0  # they are looked for in the list
    assert 3 <= watched.most <= limits.SPARK_REQUESTS_AT_ONCE + 1  # and one that reads ahead
    rows = [*range(4 * TASKS), *range(100, 100 + 4 * TASKS)]
    assert published(client, writer) == [rows] * TARGETS


def test_rows_of_many_targets_are_stored_together(client: Client) -> None:
    parts = gathered(client, f"appending-{next(_numbers)}")
    pieces = {chunk.piece for part in parts for chunk in part}
    assert TASKS <= len(pieces) < TASKS * TARGETS / 10


@pytest.mark.slow
@pytest.mark.parametrize("lives", range(1, 90, 7))
def test_a_crash_during_a_batch_to_many_targets_and_a_replay(server: Server, client: Client, lives: int) -> None:
    writer = f"appending-{next(_numbers)}"
    with httpx.Client(transport=Watching(lives)) as http:
        parts = gathered(client, writer)
        try:
            Publisher(Client(server.url, http=http), options_of(server), writer).publish(0, parts)
        except KeyboardInterrupt:
            Publisher(client, options_of(server), writer).publish(0, gathered(client, writer))
    assert published(client, writer) == [list(range(4 * TASKS))] * TARGETS


def staged(client: Client, writer: str, kind: ContentKind = ContentKind.JSON) -> list[list[RowChunk]]:
    """Each task has rows of one target, in pieces of a request."""
    parts = []
    for task in range(TASKS):
        gatherer = Gatherer(client, kind, REQUEST_BYTES, place_of(writer, 0, task))
        rows = [b'"%d%s"' % (1000 * task + n, b"x" * 40) for n in range(200)]
        gatherer.add(writer, pa.array(rows, pa.binary()))
        parts.append(gatherer.finish())
    return parts


def rows_of(parts: list[list[RowChunk]]) -> int:
    return sum(chunk.messages for part in parts for chunk in part)


class Asking(httpx.HTTPTransport):
    """Records requests for the target and for staged rows. `is_old`: refuses composes, as an older server does."""

    def __init__(self, lives: int = 1 << 30, *, is_old: bool = False) -> None:
        super().__init__(verify=False)
        self.reads: list[str] = []
        self.appends: list[str] = []
        self._lives = lives
        self._is_old = is_old

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._lives -= 1
        if self._lives < 0:
            raise KeyboardInterrupt
        path, content_type = request.url.path, request.headers.get("content-type", "")
        if request.method == "GET" and "/_spark/" in path and "/__ds/" not in path and not path.endswith("/list"):
            self.reads.append(path)
        if request.method == "POST" and "/_spark/" not in path:
            self.appends.append(content_type)
            if self._is_old and content_type == COMPOSE_TYPE:
                problem = {"type": "urn:headwater:content-type", "detail": "the stream is application/json"}
                return httpx.Response(409, json=problem, headers={"content-type": "application/problem+json"})
        return super().handle_request(request)


def test_the_driver_does_not_read_what_the_server_appends(server: Server, client: Client) -> None:
    writer = f"appending-{next(_numbers)}"
    parts = staged(client, writer)
    assert rows_of(parts) == 200 * TASKS
    with httpx.Client(transport=(transport := Asking())) as http:
        Publisher(Client(server.url, http=http), options_of(server), writer).publish(0, parts)
    assert transport.reads == []
    assert set(transport.appends) == {COMPOSE_TYPE}
    messages = client.stream(writer).read().all()
    assert [int(row.rstrip("x")) for row in messages] == [1000 * task + n for task in range(TASKS) for n in range(200)]


@pytest.mark.parametrize("lives", [4, 8, 12, 1 << 30])
def test_a_server_that_was_replaced_by_an_older_one_gets_the_same_appends(
    server: Server, client: Client, lives: int
) -> None:
    """The first attempt has composed some of them, and crashed."""
    writer = f"appending-{next(_numbers)}"
    with (
        httpx.Client(transport=Asking(lives)) as first,
        httpx.Client(transport=(transport := Asking(is_old=True))) as old,
    ):
        with contextlib.suppress(KeyboardInterrupt):
            Publisher(Client(server.url, http=first), options_of(server), writer).publish(0, staged(client, writer))
        Publisher(Client(server.url, http=old), options_of(server), writer).publish(0, staged(client, writer))
    assert bool(transport.reads) == (lives < 1 << 30)
    messages = client.stream(writer).read().all()
    assert [int(row.rstrip("x")) for row in messages] == [1000 * task + n for task in range(TASKS) for n in range(200)]


def test_staged_rows_that_are_gone_fail_a_compose(server: Server, client: Client) -> None:
    writer = f"appending-{next(_numbers)}"
    parts = staged(client, writer)
    for place in {chunk.stored_in for part in parts for chunk in part}:
        client.stream(place).delete()
    with pytest.raises(DataLossError, match=f"{writer}: the staged rows do not exist any more: .*source 1 "):
        Publisher(client, options_of(server), writer).publish(0, parts)


def test_pieces_with_more_changes_than_an_append_may_have_are_copied(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.limits.CHANGES_MAX", 15)
    writer = f"appending-{next(_numbers)}"
    table = client.table(writer)
    table.create(schema="x")
    parts = []
    for task, (count, size) in enumerate(((12, 150), (40, 30))):
        gatherer = Gatherer(client, ContentKind.TEXT, REQUEST_BYTES, place_of(writer, 0, task))
        gatherer.add(writer, pa.array([b"+\tk%d\t%s\n" % (n, b"r" * size) for n in range(count)]))
        parts.append(gatherer.finish())
    options = table_write_options({"url": server.url, "table": writer, "maxRequestBytes": str(REQUEST_BYTES)})
    options = msgspec.structs.replace(options, content_type=check_target_type(client, options))
    with httpx.Client(transport=(transport := Asking())) as http:
        Publisher(Client(server.url, http=http), options, writer).publish(0, parts)
    assert [content_type == COMPOSE_TYPE for content_type in transport.appends] == [True, False, False, False]
    assert [row.key for row in table.rows()] == [f"k{n}" for count in (12, 40) for n in range(count)]


def test_one_of_many_targets_refuses(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is kept, because other targets may have their rows. A retry completes all targets."""
    writer = f"appending-{next(_numbers)}"
    publisher = Publisher(client, options_of(server), writer)
    closed = client.stream(f"{writer}/07")
    closed.create(closed=True)
    with monkeypatch.context() as unchecked:
        unchecked.setattr("headwater.spark.publishing.check_stream", lambda options, stream: "application/json")
        with pytest.raises(SchemaError, match=f"{writer}/07 does not accept the rows.*a retry appends the rest"):
            publisher.publish(0, gathered(client, writer))
    closed.delete()
    Publisher(client, options_of(server), writer).publish(0, gathered(client, writer))
    assert published(client, writer) == [list(range(4 * TASKS))] * TARGETS


@pytest.mark.parametrize("targets", [1, 5])
def test_the_memory_of_the_driver_is_bounded(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, targets: int
) -> None:
    """It reads at most one run ahead, for batches of any size."""
    held, most, lock = 0, 0, threading.Lock()

    def count(size: int) -> None:
        nonlocal held, most
        with lock:
            held += size
            most = max(held, most)

    def read(client: Client, chunk: RowChunk) -> bytes:
        count(chunk.size)
        return b"1" * chunk.size

    class Target:
        def bodies(self, rows: bytes) -> list[bytes]:
            return [rows]

        def append(self, body: bytes, producer: ProducerTuple) -> None:
            time.sleep(0.001)
            count(-len(body))

    monkeypatch.setattr("headwater.spark.appending.read_piece", read)
    monkeypatch.setattr("headwater.spark.appending.open_target", lambda *named: Target())
    chunks = [
        RowChunk(str(n % targets), REQUEST_BYTES - 2, stored_in="_spark/x", offset=str(n), until=str(n + 1))
        for n in range(200)
    ]
    Appending(client, options_of(server), "writer", 0).append(Listed(joined(chunks, REQUEST_BYTES), "application/json"))
    assert held == 0
    assert most <= 2 * limits.SPARK_PUBLISHED_BYTES


def test_runs_keep_pieces_together_and_fill_requests() -> None:
    pieces = [
        RowChunk(target, size, stored_in="s", offset=piece, until=piece)
        for piece in "abc"
        for target, size in (("x", 900), ("y", 1500), ("x", 600))
    ]
    chunks = joined(pieces, REQUEST_BYTES)
    assert [[chunk.offset for chunk in run] for run in runs_of(chunks)] == [["a"] * 3 + ["b"] * 3, ["c"] * 3]
    assert [chunk.goes_on for chunk in chunks if chunk.target == "x"] == [True, False, True, False, True, False]
    assert not any(chunk.goes_on for chunk in chunks if chunk.target == "y")


@pytest.mark.slow
def test_a_batch_is_stored_once_although_the_server_refuses_requests(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal with 429 is temporary: the client of the sink waits as long as the server asks for."""
    writer = f"appending-{next(_numbers)}"
    with serving(limits.Limits(requests_per_s_per_address=40)) as limited:
        options = options_of(limited)
        with options.open() as client:
            Publisher(client, options, writer).publish(0, gathered(client, writer))
            assert any("Too many requests" in record.getMessage() for record in caplog.records)
            assert published(client, writer) == [list(range(4 * TASKS))] * TARGETS
