"""Publishing, with a crash at any request and a replay with other partitions."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import httpx
import msgspec
import pyarrow as pa
import pytest

from headwater.client import Client
from headwater.errors import DataLossError, StaleEpochError, StreamClosedError
from headwater.log.content import ContentKind
from headwater.spark.options import JOURNAL_ROOT, WriteOptions, write_options
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Gatherer, RowChunk, place_of
from tests.servers import Server

pytestmark = pytest.mark.slow

_numbers = itertools.count()


class Killed(BaseException):
    """Simulates the end of the process."""


class Mortal(httpx.BaseTransport):
    """Crashes at the n-th request: before it is sent, or after its response."""

    def __init__(self, lives: int, *, answered: bool) -> None:
        self._real = httpx.HTTPTransport(verify=False)
        self._lives = lives
        self._answered = answered
        self.request_count = 0

    def close(self) -> None:
        self._real.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.request_count += 1
        if self.request_count == self._lives and not self._answered:
            raise Killed
        response = self._real.handle_request(request)
        response.read()
        if self.request_count == self._lives:
            raise Killed
        return response


@contextlib.contextmanager
def client_of(server: Server, transport: httpx.BaseTransport | None = None) -> Iterator[Client]:
    """A client that loads no certificates, which would take longer than the tests."""
    with httpx.Client(transport=transport or httpx.HTTPTransport(verify=False)) as http:
        yield Client(server.url, http=http)


class Stuttering(httpx.BaseTransport):
    """Sends every request twice, as a client does after a lost response, and returns the second response."""

    def __init__(self) -> None:
        self._real = httpx.HTTPTransport(verify=False)

    def close(self) -> None:
        self._real.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._real.handle_request(request).read()
        return self._real.handle_request(request)


class Query:
    """A writer that runs its batches in attempts."""

    def __init__(self, server: Server, request_bytes: int) -> None:
        self._server = server
        self.writer = f"query-{next(_numbers)}"
        self.target = f"targets/{self.writer}"
        self.elsewhere: str | None = None
        self.options: WriteOptions = write_options({"url": server.url, "maxRequestBytes": str(request_bytes)})

    def gather(self, batch: int, rows: list[int], parts: int) -> list[list[RowChunk]]:
        """The chunks of tasks for rows in this many partitions. Odd rows go to the second target, if there is one."""
        gathered = []
        with client_of(self._server) as client:
            for part in range(parts):
                place = place_of(self.writer, batch, part)
                gatherer = Gatherer(client, ContentKind.JSON, self.options.max_request_bytes, place)
                own = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
                for start in range(0, len(own), 7):
                    some = own[start : start + 7]
                    for target, wanted in (
                        (self.target, (0, 1) if self.elsewhere is None else (0,)),
                        (self.elsewhere, (1,)),
                    ):
                        messages = [b"%d" % row for row in some if row % 2 in wanted]
                        if target is not None and messages:
                            gatherer.add(target, pa.array(messages, pa.binary()))
                gathered.append(gatherer.finish())
        return gathered

    def attempt(self, batch: int, rows: list[int], parts: int, transport: httpx.BaseTransport | None = None) -> None:
        gathered = self.gather(batch, rows, parts)
        with client_of(self._server, transport) as client:
            Publisher(client, self.options, self.writer).publish(batch, gathered)

    def published(self) -> list[int]:
        with client_of(self._server) as client:
            elsewhere = [] if self.elsewhere is None else client.stream(self.elsewhere).read().all()
            return client.stream(self.target).read().all() + elsewhere

    def stored(self) -> list[str]:
        with client_of(self._server) as client:
            paths = [info.path for info in client.list(f"{JOURNAL_ROOT}/{self.writer}/")]
            return [path for path in paths if not path.endswith(("/list", "/fence"))]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit for inline rows, so that tasks stage their rows."""
    monkeypatch.setattr("headwater.limits.SPARK_INLINE_BYTES", 20)


@pytest.fixture(autouse=True, params=["composed", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged rows are appended by the server, or by the driver, as on other servers."""
    if request.param == "copied":
        monkeypatch.setattr("headwater.client.flows.COMPOSE_TYPE", "not/offered")


ROWS = 30
SMALL = 40  # bytes of a request: a batch takes several
SIZES = [pytest.param(100_000, id="whole"), pytest.param(SMALL, id="listed")]


@pytest.mark.slow
@pytest.mark.parametrize("request_bytes", SIZES)
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("targets", [1, 2])
def test_a_crash_at_any_request_and_a_replay_with_other_partitions(
    server: Server, request_bytes: int, answered: bool, targets: int
) -> None:
    chance = random.Random(request_bytes)
    for lives in itertools.count(1):
        query = Query(server, request_bytes)
        query.elsewhere = f"{query.target}-elsewhere" if targets == 2 else None
        query.attempt(0, [-1, -2], 1)
        rows = list(range(ROWS))
        transport = Mortal(lives, answered=answered)
        try:
            query.attempt(1, rows, 3, transport)
        except Killed:
            chance.shuffle(rows)
            query.attempt(1, rows, 4)
        assert sorted(query.published()) == [-2, -1, *range(ROWS)], lives
        query.attempt(1, list(reversed(rows)), 2)  # Spark repeats the batch if it crashed before it recorded the commit
        query.attempt(2, [100], 1)
        assert sorted(query.published()) == [-2, -1, *range(ROWS), 100], lives
        if transport.request_count < lives:
            assert lives > (3 if request_bytes > 1000 else 12)
            return


@pytest.mark.parametrize("first", [100_000, SMALL])
@pytest.mark.parametrize("second", [100_000, SMALL])
@pytest.mark.parametrize("lives", [2, 4, 6, 9, 12, 1000])
def test_only_one_of_several_attempts_with_different_rows_is_published(
    server: Server, first: int, second: int, lives: int
) -> None:
    """A query that is not deterministic publishes the rows of exactly one attempt."""
    query = Query(server, first)
    with contextlib.suppress(Killed):
        query.attempt(0, list(range(ROWS)), 3, Mortal(lives, answered=True))
    for again in (lives, 1000):
        query.options = write_options({"url": server.url, "maxRequestBytes": str(second)})
        with contextlib.suppress(Killed):
            query.attempt(0, list(range(again, again + 50)), 2, Mortal(again, answered=True))
    assert query.published() in (list(range(ROWS)), list(range(lives, lives + 50)), list(range(1000, 1050)))


def test_a_replay_without_rows_completes_the_batch(server: Server) -> None:
    query, _ = half_published(server)
    query.attempt(0, [], 3)
    assert query.published() == list(range(ROWS))
    query.attempt(1, [], 3)
    query.attempt(2, [100], 1)
    assert query.published() == [*range(ROWS), 100]


def test_an_older_run_is_fenced_off_from_targets_without_rows_of_the_later_batch(server: Server) -> None:
    query = Query(server, SMALL)
    query.elsewhere = f"{query.target}-elsewhere"
    query.attempt(5, list(range(ROWS)), 3)
    query.attempt(6, [100, 102], 1)  # even numbers only: nothing for the other target
    with pytest.raises(StaleEpochError, match="another run of the query is ahead"):
        query.attempt(5, list(range(1, 120, 2)), 2)
    assert query.published() == [*range(0, ROWS, 2), 100, 102, *range(1, ROWS, 2)]


def test_a_list_that_is_longer_than_a_request(server: Server) -> None:
    query = Query(server, 4000)
    with client_of(server) as client:
        for attempt in range(2):
            gatherer = Gatherer(client, ContentKind.JSON, 4000, place_of(query.writer, 0, attempt))
            for number in range(800 if attempt == 0 else 10):
                gatherer.add(f"{query.target}/{number % 40}", pa.array([b'"%0400d"' % number], pa.binary()))
            Publisher(client, query.options, query.writer).publish(0, [gatherer.finish()])
        assert sum(len(client.stream(f"{query.target}/{number}").read().all()) for number in range(40)) == 800
    assert query.stored() == []


def test_a_target_that_refuses_rows_is_found_before_the_list_is_written(server: Server) -> None:
    query = Query(server, SMALL)
    with client_of(server) as client:
        client.stream(query.target).create(closed=True)
        with pytest.raises(StreamClosedError):
            query.attempt(0, [1, 2], 1)
        client.stream(query.target).delete()
    query.attempt(0, [3], 1)
    assert query.published() == [3]


def test_a_batch_is_appended_with_its_recorded_content_type(server: Server) -> None:
    """Even if the options have changed before the replay."""
    query, _ = half_published(server, named=True)
    query.options = msgspec.structs.replace(query.options, content_type="text/plain")
    query.attempt(0, list(range(ROWS)), 2)
    assert query.published() == list(range(ROWS))


@pytest.mark.parametrize("request_bytes", SIZES)
def test_lost_responses(server: Server, request_bytes: int) -> None:
    query = Query(server, request_bytes)
    for batch in range(3):
        query.attempt(batch, list(range(batch * 100, batch * 100 + ROWS)), 3, Stuttering())
    assert query.published() == [*range(ROWS), *range(100, 100 + ROWS), *range(200, 200 + ROWS)]


def test_unusual_names_of_targets(server: Server) -> None:
    query = Query(server, SMALL)
    query.target = f"bücher/{query.writer} #1?"
    query.attempt(0, list(range(ROWS)), 3)
    assert query.published() == list(range(ROWS))


@pytest.mark.parametrize("over", range(-3, 4))
def test_a_body_of_the_maximum_size(server: Server, over: int) -> None:
    """The server of these tests accepts bodies of 1 MiB."""
    query = Query(server, 1 << 20)
    with client_of(server) as client:
        gatherer = Gatherer(client, ContentKind.JSON, 1 << 20, place_of(query.writer, 0, 0))
        row = b"1" * ((1 << 19) - 1)
        gatherer.add(query.target, pa.array([row, row[: len(row) + over - 3], b"2" * max(1, over)], pa.binary()))
        Publisher(client, query.options, query.writer).publish(0, [gatherer.finish()])
        appended = client.stream(query.target).read(type=bytes).all()
    assert len(appended) == 3


@pytest.mark.parametrize("request_bytes", SIZES)
def test_an_older_run_is_fenced_off(server: Server, request_bytes: int) -> None:
    query = Query(server, request_bytes)
    query.attempt(5, list(range(ROWS)), 3)
    with pytest.raises(
        StaleEpochError, match="another run of the query is ahead of this one, or the checkpoint was set back"
    ):
        query.attempt(4, list(range(ROWS)), 3)
    assert query.published() == list(range(ROWS))


@pytest.mark.slow
def test_two_drivers_at_once(server: Server) -> None:
    """The old driver continues between any two requests of the new one."""
    for lives in range(1, 40):
        query = Query(server, SMALL)
        old = query.gather(0, list(range(ROWS)), 3)
        new = query.gather(0, list(range(ROWS)), 5)
        with contextlib.suppress(Killed), client_of(server, Mortal(lives, answered=True)) as client:
            Publisher(client, query.options, query.writer).publish(0, new)
        with client_of(server) as client:
            Publisher(client, query.options, query.writer).publish(0, old)
        assert query.published() == list(range(ROWS))


def test_internal_streams_are_deleted(server: Server) -> None:
    query = Query(server, SMALL)
    query.attempt(0, list(range(ROWS)), 3)
    assert query.stored() == []
    gathered = query.gather(1, list(range(ROWS)), 3)
    assert query.stored() != []
    with client_of(server) as client:
        Publisher(client, query.options, query.writer).abandon(1, gathered)
    assert query.stored() == []


_half = 1  # requests after which a batch is half published, as far as known


def half_published(server: Server, *, named: bool = False) -> tuple[Query, list[list[RowChunk]]]:
    """A batch of which some appends were made when the driver died; its target is named by an option or a column."""
    global _half
    while True:
        query = Query(server, SMALL)
        if named:
            query.options = msgspec.structs.replace(query.options, target=query.target)
        gathered = query.gather(0, list(range(ROWS)), 3)
        mortal = Mortal(_half, answered=True)
        with contextlib.suppress(Killed), client_of(server, mortal) as client:
            client.stream(query.target).create()
            Publisher(client, query.options, query.writer).publish(0, gathered)
        if 0 < len(query.published()) < ROWS:
            return query, gathered
        # One that is composed takes fewer requests than one that is copied.
        _half = _half + 1 if mortal.request_count >= _half else 1


def test_staged_rows_in_a_list_are_not_deleted(server: Server) -> None:
    query, gathered = half_published(server)
    with client_of(server) as client:
        Publisher(client, query.options, query.writer).abandon(0, gathered)
    query.attempt(0, list(range(ROWS)), 7)
    assert query.published() == list(range(ROWS))


def test_missing_staged_rows_fail_the_batch(server: Server) -> None:
    query, _ = half_published(server)
    with client_of(server) as client:
        for path in query.stored():
            client.stream(path).delete()
    with pytest.raises(DataLossError, match=r"the staged rows in .* do not exist any more"):
        query.attempt(0, list(range(ROWS)), 2)


def test_the_order_is_that_of_the_partitions(server: Server) -> None:
    for request_bytes in (100_000, SMALL):
        query = Query(server, request_bytes)
        query.attempt(0, list(range(200)), 5)
        assert query.published() == list(range(200))


@pytest.mark.parametrize("size", [1, 10, 49, 50, 51, 500])
def test_chunks_are_as_large_as_a_request(server: Server, size: int) -> None:
    query = Query(server, SMALL)
    with client_of(server) as client:
        gatherer = Gatherer(client, ContentKind.JSON, 50, place_of(query.writer, 0, 0))
        messages = [b"1" * (n % size + 1) for n in range(40)]
        gatherer.add("a", pa.array(messages, pa.binary())[3:])
        chunks = gatherer.finish()
        largest = max(len(message) + 1 for message in messages)
        assert all(chunk.size <= max(50, largest) for chunk in chunks)
        assert sum(chunk.size + 1 for chunk in chunks) == sum(len(message) + 1 for message in messages[3:])
