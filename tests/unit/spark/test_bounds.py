"""Start and end of reads at times."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from headwater.client import Client
from headwater.errors import OptionError
from headwater.spark.bounds import Bounds
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Planner
from headwater.spark.positions import StreamPlace
from tests.servers import Server

_numbers = itertools.count()
URL = {"url": "http://127.0.0.1:4437"}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def paths(client: Client) -> list[str]:
    """Two streams of three records each, at different times."""
    prefix = f"bounds/{next(_numbers)}"
    paths = [f"{prefix}/a", f"{prefix}/b"]
    for path in paths:
        client.stream(path).create()
    for number in range(6):
        client.stream(paths[number % 2]).append_many([number, number])
        time.sleep(0.003)
    return paths


def bounds(client: Client, server: Server, **texts: str) -> tuple[dict[str, StreamPlace], dict[str, StreamPlace]]:
    options = read_options({"url": server.url, **texts}, bounded=True)
    planner = Planner(options, client)
    streams = planner.check()
    made = Bounds(options, client, planner)
    start, end = made.start(streams), made.end(streams)
    made.check_order(start, end)
    return start, end


def times(client: Client, path: str) -> list[tuple[str, datetime]]:
    return [(record.offset, record.time) for record in client.stream(path).records()]


@pytest.mark.parametrize("by", ["streams", "pattern"])
@pytest.mark.parametrize("form", ["RFC 3339", "milliseconds"])
def test_the_first_record_at_or_after_a_time(
    client: Client, server: Server, paths: list[str], by: str, form: str
) -> None:
    a, b = paths
    named = {"streams": ",".join(paths)} if by == "streams" else {"pattern": f"{a[:-1]}*"}
    (_, _), (second, moment), (_, _) = times(client, a)
    (_, _), (second_b, _), (_, _) = times(client, b)
    time = moment.isoformat() if form == "RFC 3339" else str(round(moment.timestamp() * 1000))
    start, end = bounds(client, server, startingTimestamp=time, endingTimestamp=time, **named)
    assert start == end == {a: StreamPlace(second), b: StreamPlace(second_b)}


def test_a_time_for_each_stream(client: Client, server: Server, paths: list[str]) -> None:
    a, b = paths
    (_, _), (second, moment), (_, _) = times(client, a)
    tail_a, tail_b = (client.stream(path).head().tail_offset for path in paths)
    by_stream = json.dumps({a: round(moment.timestamp() * 1000)})
    start, end = bounds(client, server, streams=f"{a},{b}", startingTimestamp=by_stream)
    first_a, first_b = (client.stream(path).head().first_offset or "" for path in paths)
    assert start == {a: StreamPlace(second), b: StreamPlace(first_b)}
    assert end == {a: StreamPlace(tail_a), b: StreamPlace(tail_b)}
    start, end = bounds(client, server, streams=f"{a},{b}", endingTimestamp=by_stream)
    assert start == {a: StreamPlace(first_a), b: StreamPlace(first_b)}
    assert end == {a: StreamPlace(second), b: StreamPlace(tail_b)}
    with pytest.raises(OptionError, match="startingTimestamp names streams that do not exist: nobody"):
        bounds(client, server, pattern=f"{a[:-1]}*", startingTimestamp='{"nobody": 1}')


def test_times_before_and_after_everything(client: Client, server: Server, paths: list[str]) -> None:
    [a, _] = paths
    first, *_, (_, last) = times(client, a)
    tail = client.stream(a).head().tail_offset
    later = (last + timedelta(milliseconds=1)).isoformat()
    assert bounds(client, server, streams=a, startingTimestamp=later) == (
        {a: StreamPlace(tail)},
        {a: StreamPlace(tail)},
    )
    assert bounds(client, server, streams=a, startingTimestamp="0")[0] == {a: StreamPlace(first[0])}
    with pytest.raises(OptionError, match="is before the start"):
        bounds(client, server, streams=a, startingTimestamp=later, endingTimestamp="0")
    client.stream(a).close()
    assert bounds(client, server, streams=a, startingTimestamp=later)[0] == {a: StreamPlace(tail, ended=True)}


def test_data_appended_after_planning_is_not_read(client: Client, server: Server, paths: list[str]) -> None:
    """With an end in the future, the batch ends at the tail at the time of planning."""
    [a, _] = paths
    options = read_options({"url": server.url, "streams": a, "startingTimestamp": "253402300799000"}, bounded=True)
    planner = Planner(options, client)
    streams = planner.check()
    client.stream(a).append(7)
    assert Bounds(options, client, planner).start(streams) == {a: StreamPlace(streams[a].tail_offset)}


def test_a_server_without_record_times(server: Server, paths: list[str]) -> None:
    class Plain(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if "/__ds/" in request.url.path:
                return httpx.Response(404, request=request)
            return super().handle_request(request)

    with httpx.Client(transport=Plain(verify=False)) as http:
        with pytest.raises(OptionError, match="endingTimestamp needs a server with record times; use endingOffsets"):
            bounds(Client(server.url, http=http), server, streams=paths[0], endingTimestamp="1")


def options(**texts: Any) -> ReadOptions:
    return read_options({**URL, "streams": "a", **texts}, bounded=True)


def test_the_options() -> None:
    assert options(startingTimestamp="2026-11-15T08:00:00.5Z").starting_timestamp == 1_794_729_600_500
    assert options(startingTimestamp="2026-11-15T09:00:00+01:00").starting_timestamp == 1_794_729_600_000
    assert options(endingTimestamp='{"/a": "1970-01-01T00:00:01Z"}').ending_timestamp == {"a": 1000}
    for text in ("yesterday", "-5", "2026-11-15", "9" * 40, "1.5"):
        with pytest.raises(OptionError, match="must be a time such as"):
            options(startingTimestamp=text)
    for text in ("{", '{"a": [1]}'):
        with pytest.raises(OptionError, match="JSON such as"):
            options(startingTimestamp=text)
    with pytest.raises(OptionError, match="names b, which the option streams does not name"):
        options(startingTimestamp='{"b": 1}')
    with pytest.raises(OptionError, match="give startingTimestamp or startingOffsets, not both"):
        options(startingTimestamp="1", startingOffsets="latest")
    with pytest.raises(OptionError, match="endingTimestamp is for batch reads"):
        read_options({**URL, "streams": "a", "endingTimestamp": "1"}, bounded=False)
