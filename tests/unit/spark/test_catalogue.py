"""The number of requests to plan batches of many streams, and that the plan equals that of single requests."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headwater import limits
from headwater.client import Client
from headwater.errors import DataLossError, OptionError
from headwater.spark.catalogue import StreamDirectory
from headwater.spark.columns import RangeReader
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Places, Planner, from_json, to_json
from headwater.spark.positions import StreamPlace, StreamRange
from headwater.spark.querying import TaskInput
from headwater.spark.sources import StreamReader
from tests.servers import Server
from tests.waiting import LIMIT_S

_numbers = itertools.count()
VALUES = StructType([StructField("offset", StringType()), StructField("value", StringType())])
Connect = Callable[[httpx.BaseTransport], Client]
MANY = limits.SPARK_HEADS_MAX + 8


class Counting(httpx.HTTPTransport):
    """Records the requests, and the maximum number of concurrent ones. HEAD waits until there were `together`."""

    def __init__(self, *, without: str = "nothing", together: int = 1) -> None:
        super().__init__(verify=False)
        self.requests: list[str] = []
        self.most = 0
        self._without = without
        self._together = together
        self._under_way = 0
        self._changed = threading.Condition()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self._changed:
            self.requests.append(f"{request.method} {request.url.path.rpartition('/v1/stream/')[2]}")
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            self._changed.notify_all()
            if request.method == "HEAD":
                self._changed.wait_for(lambda: self.most >= self._together, LIMIT_S)
        try:
            if self._without in request.url.path:
                return httpx.Response(404, request=request)
            return super().handle_request(request)
        finally:
            with self._changed:
                self._under_way -= 1


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Creates clients with a given transport."""
    with contextlib.ExitStack() as opened:
        yield lambda transport: Client(server.url, http=opened.enter_context(httpx.Client(transport=transport)))


@pytest.fixture
def prefix(client: Client) -> str:
    """Many streams of one message each."""
    prefix = f"catalogue/{next(_numbers)}"
    for number in range(MANY):
        client.stream(f"{prefix}/{number:03d}").create(messages=[number])
    return prefix


def named(prefix: str) -> str:
    return ",".join(f"{prefix}/{number:03d}" for number in range(MANY))


def options_of(server: Server, **texts: str) -> ReadOptions:
    return read_options({"url": server.url, **texts}, bounded=False, state=False)


def rows_of(options: ReadOptions, client: Client, ranges: list[list[StreamRange]]) -> list[dict[str, str]]:
    reader = RangeReader(options, client, VALUES)
    return [row for part in ranges for one in part for batch in reader.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("by", ["pattern", "streams"])
def test_many_streams_are_planned_without_a_request_for_each(
    server: Server, client: Client, prefix: str, connect: Connect, by: str
) -> None:
    options = options_of(server, **{by: f"{prefix}/*" if by == "pattern" else named(prefix)})
    transport = Counting()
    planner = Planner(options, connect(transport))
    start = planner.resolve("earliest", planner.check())
    end = planner.advance(start, planner.tails(), limited=False)
    ranges = planner.partitions(from_json(to_json(start)), from_json(to_json(end)))
    assert transport.requests == ["GET __ds/streams"] * 2
    assert [row["value"] for row in rows_of(options, client, ranges)] == [str(number) for number in range(MANY)]
    assert all(row["offset"] != "-1" for row in rows_of(options, client, ranges))

    replayed = Planner(options, connect(transport := Counting()))  # by a driver that has seen none of them
    assert replayed.partitions(from_json(to_json(start)), from_json(to_json(end))) == ranges
    assert transport.requests == ["GET __ds/streams"]


def test_streams_of_other_servers_are_requested_several_at_a_time(
    server: Server, prefix: str, connect: Connect
) -> None:
    transport = Counting(without="/__ds/", together=3)
    looked = StreamDirectory(options_of(server, streams=named(prefix)), connect(transport))
    assert len(looked.look()) == MANY
    assert sorted(transport.requests[1:]) == [f"HEAD {path}" for path in named(prefix).split(",")]
    assert 3 <= transport.most <= limits.SPARK_REQUESTS_AT_ONCE
    transport.requests.clear()
    looked.look()
    assert "GET __ds/streams" not in transport.requests  # it is known to have none


def test_few_named_streams_among_many_others(
    server: Server, prefix: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is not used any more when it has too many other streams, even before the named ones."""
    monkeypatch.setattr("headwater.limits.SPARK_HEADS_MAX", 1)
    monkeypatch.setattr("headwater.limits.SPARK_LISTED_PER_NAMED_MAX", 5)
    wanted = [f"{prefix}/{number:03d}" for number in (2, MANY - 1)]
    transport = Counting()
    looked = StreamDirectory(options_of(server, streams=",".join(wanted)), connect(transport))
    assert list(looked.look()) == wanted
    assert transport.requests == ["GET __ds/streams", f"HEAD {wanted[1]}"]
    looked.look()
    assert sorted(transport.requests[2:]) == [f"HEAD {path}" for path in wanted]


def test_a_pattern_needs_a_list(server: Server, prefix: str, connect: Connect) -> None:
    looked = StreamDirectory(options_of(server, pattern=f"{prefix}/*"), connect(Counting(without="/__ds/")))
    with pytest.raises(OptionError, match="use streams instead"):
        looked.look()


@pytest.mark.parametrize("lossy", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_is_created_again_between_planning_and_reading(
    server: Server, client: Client, lossy: bool, begun: bool
) -> None:
    """No data of the new stream is read as data of the old one, from the beginning or from a later offset."""
    path = f"catalogue/{next(_numbers)}/a"
    client.stream(path).create(messages=[1])
    options = options_of(server, pattern=path, failOnDataLoss="false" if lossy else "true")
    planner = Planner(options, client)
    start: Places = {path: StreamPlace(client.stream(path).head().tail_offset if begun else "-1")}
    client.stream(path).append(2)
    end = planner.advance(start, planner.tails(), limited=False)
    client.stream(path).delete()
    client.stream(path).create(messages=[3, 4])
    [ranges] = planner.partitions(start, end)
    reader = StreamReader(options, VALUES)
    if lossy:
        assert list(reader.read(TaskInput(ranges))) == []
        after = planner.advance(end, planner.tails(), limited=False)
        assert [row["value"] for row in rows_of(options, client, planner.partitions(end, after))] == ["3", "4"]
    else:
        with pytest.raises(DataLossError, match=path):
            list(reader.read(TaskInput(ranges)))


def test_forks_are_read_from_the_beginning_of_their_source(server: Server, client: Client) -> None:
    prefix = f"catalogue/{next(_numbers)}"
    client.stream(f"{prefix}/a").create(messages=[1, 2])
    client.stream(f"{prefix}/a").fork(f"{prefix}/b")
    client.stream(f"{prefix}/a").fork(f"{prefix}/c")
    options = options_of(server, pattern=f"{prefix}/[bc]")
    planner = Planner(options, client)
    place: Places = {}
    for last in (False, True):
        client.stream(f"{prefix}/{'b' if last else 'c'}").append(3)
        end = planner.advance(place, planner.tails(), limited=False)
        values = [row["value"] for row in rows_of(options, client, planner.partitions(place, end))]
        assert values == (["3"] if last else ["1", "2", "1", "2", "3"])
        place = end


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "13"}, {"maxBytesPerTrigger": "50"}])
def test_a_limit_over_many_streams(
    server: Server, client: Client, prefix: str, connect: Connect, limit: dict[str, str]
) -> None:
    """Every stream is read in turn, and no batch is larger than the limit."""
    options = options_of(server, pattern=f"{prefix}/*", **limit)
    planner = Planner(options, connect(transport := Counting()))
    read: list[str] = []
    place: Places = {}
    while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
        rows = rows_of(options, client, planner.partitions(place, end))
        most = 13 if "maxRecordsPerTrigger" in limit else 50 // 2
        assert 0 < len(rows) <= most
        read += [row["value"] for row in rows]
        place = end
    assert sorted(read, key=int) == [str(number) for number in range(MANY)]
    assert transport.most <= limits.SPARK_REQUESTS_AT_ONCE
