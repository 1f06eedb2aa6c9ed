"""Positions and append times of messages, in any ranges."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headwater.client import Client, RecordTimes, Stream
from headwater.errors import ProtocolError, StreamNotFoundError
from headwater.positions import Position
from headwater.spark.columns import RangeReader
from headwater.spark.options import read_options
from headwater.spark.planning import Places, Planner, to_json
from headwater.spark.positions import StreamRange
from headwater.spark.times import AppendTimes
from tests.servers import Server

_numbers = itertools.count()
ORDER, VALUE = StructField("order", LongType()), StructField("value", StringType())
TIMESTAMP, APPENDED = StructField("timestamp", TimestampType()), StructField("append_time", TimestampType())


class Counting(httpx.HTTPTransport):
    """Counts requests for record times. Without extensions it responds to none of them."""

    def __init__(self, extended: bool) -> None:
        super().__init__(verify=False)
        self.extended = extended
        self.request_count = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.request_count += request.url.path.endswith("/records")
        if not self.extended:
            request.url = request.url.copy_remove_param("until")
            if "/__ds/" in request.url.path:
                return httpx.Response(404, request=request)
        return super().handle_request(request)


@pytest.fixture(params=[True, False])
def transport(request: pytest.FixtureRequest) -> Iterator[Counting]:
    with Counting(request.param) as transport:
        yield transport


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    with Client(server.url) as client:
        yield client.stream(f"times/{next(_numbers)}")


def filled(stream: Stream, content_type: str = "application/json") -> list[datetime]:
    """Appends of one to five messages, some of them apart in time; the time of each message."""
    stream.create(content_type=content_type)
    counts = [1, 5, 2, 3, 1, 4]
    for number, count in enumerate(counts):
        if content_type == "application/json":
            event = {"type": "é" * number, "key": "k", "value": number, "headers": {"operation": "insert"}}
            stream.append_many([{**event, "type": "t" * (n + 1)} for n in range(count)])
        else:
            stream.append("é" * count)
        time.sleep(0.002 * (number % 2))
    return [record.time for record, count in zip(stream.records(), counts, strict=True) for _ in range(count)]


def rows(server: Server, stream: Stream, transport: Counting, *fields: StructField, **texts: str) -> list[Any]:
    texts |= {"url": server.url, "streams": stream.path or ""}
    options = read_options(texts, bounded=False, state=APPENDED in fields)
    with httpx.Client(transport=transport) as http:
        client = Client(server.url, http=http)
        planner = Planner(options, client)
        reader = RangeReader(options, client, StructType(list(fields)))
        place: Places = planner.resolve("earliest", planner.check())
        read_rows = []
        while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
            for ranges in planner.partitions(place, end):
                read_rows += [row for part in ranges for batch in reader.read(part) for row in batch.to_pylist()]
            place = end
    return read_rows


@pytest.mark.parametrize("texts", [{}, {"minPartitions": "3"}, {"maxRecordsPerTrigger": "2"}])
@pytest.mark.parametrize("timed", [TIMESTAMP, APPENDED])
def test_every_message_has_its_place_and_time(
    server: Server, stream: Stream, transport: Counting, texts: dict[str, str], timed: StructField
) -> None:
    times = filled(stream)
    read_rows = rows(server, stream, transport, ORDER, timed, VALUE, **texts)
    orders = [row["order"] for row in read_rows]
    assert orders == sorted(set(orders))
    if transport.extended:
        assert [row[timed.name] for row in read_rows] == times
        sizes = [len(message) + 1 for message in stream.read(type=bytes).all()]
        assert orders == list(np.cumsum([0, *sizes[:-1]]))
    else:
        assert {row[timed.name] for row in read_rows} == {None}


@pytest.mark.parametrize("texts", [{}, {"minPartitions": "3"}])
def test_a_run_of_text_has_the_position_and_time_of_its_first_byte(
    server: Server, stream: Stream, transport: Counting, texts: dict[str, str]
) -> None:
    filled(stream, "text/plain")
    by_start = {int(record.offset[17:]): record.time for record in stream.records()}
    read_rows = rows(server, stream, transport, ORDER, TIMESTAMP, VALUE, **texts)
    assert len(read_rows) == (int(texts.get("minPartitions", "1")) if transport.extended else 1)
    for row in read_rows:
        assert row["timestamp"] == (by_start[row["order"]] if transport.extended else None)


def test_record_times_are_requested_only_if_the_schema_has_them(
    server: Server, stream: Stream, transport: Counting
) -> None:
    filled(stream)
    assert len(rows(server, stream, transport, ORDER, VALUE)) == 16
    assert transport.request_count == 0


class Pages:
    """Records of ten bytes each, in pages of three; their times are their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.request_count = 0

    def record_times(self, *, offset: str, until: str | None) -> Iterator[RecordTimes]:
        for first in range(int(offset[17:]) // 10, self.count, 3):
            self.request_count += 1
            numbers = range(first, min(first + 3, self.count))
            ends = [10 * (number - first + 1) for number in numbers]
            begin, end = (f"{1:016d}_{10 * number:016d}" for number in (first, numbers[-1] + 1))
            yield RecordTimes(begin, end, numbers[-1] + 1 == self.count, ends, list(numbers))


def test_pages_of_times_are_fetched_as_messages_are_read() -> None:
    pages = Pages(10)
    part = StreamRange(
        "s", "application/json", Position(f"{1:016d}_{10:016d}"), Position(f"{1:016d}_{100:016d}"), exact=True
    )
    times = AppendTimes(pages, part)  # type: ignore[arg-type]
    assert pages.request_count == 0

    def numbers(*starts: int) -> list[int | None]:
        column: list[int | None] = times.column(np.array(starts, np.int64)).cast("int64").to_pylist()
        return column

    assert numbers() == []
    assert numbers(10, 15, 20) == [1, 1, 2]
    assert pages.request_count <= 2  # one page is requested ahead
    assert numbers(25, 30, 45) == [2, 3, 4]
    assert pages.request_count <= 3
    assert numbers(88, 99, 100) == [8, 9, None]
    assert numbers(200) == [None]
    assert pages.request_count == 3


def test_a_deleted_stream_is_not_taken_for_a_server_without_times(server: Server) -> None:
    with Client(server.url) as client:
        part = StreamRange("times/missing", "application/json", Position(), Position(), exact=True)
        with pytest.raises(StreamNotFoundError):
            AppendTimes(client.stream(part.path), part).column(np.array([0], np.int64))


class Broken(Pages):
    """A server that has record times, and whose responses are broken."""

    def record_times(self, *, offset: str, until: str | None) -> Iterator[RecordTimes]:
        yield from ()
        raise ProtocolError("not a page of record times")


def test_a_broken_page_is_not_taken_for_a_server_without_times() -> None:
    part = StreamRange("s", "application/json", Position(f"{1:016d}_{0:016d}"), Position(), exact=True)
    with pytest.raises(ProtocolError, match="not a page"):
        AppendTimes(Broken(1), part).column(np.array([0], np.int64))  # type: ignore[arg-type]
