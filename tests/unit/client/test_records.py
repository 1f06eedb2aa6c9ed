"""Record times against a scripted server: what is asked, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest

from headwater.client import Client, RecordInfo, Retry
from headwater.errors import MissingExtensionError, OffsetGoneError, ProtocolError, StreamNotFoundError
from tests.shells import SHELLS, client_of

QUICK = Retry(attempts=2, first_s=0.0001, most_s=0.001)
START = datetime(2026, 11, 15, 19, 30, tzinfo=UTC)
COUNT = 7

Handler = Callable[[httpx.Request], httpx.Response]
Connect = Callable[[Handler], Client]


@pytest.fixture(params=SHELLS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """A client of either shell whose requests a function answers."""
    entered: list[Any] = []

    def made(handler: Handler) -> Client:
        transport = httpx.MockTransport(handler)
        kind = httpx.Client if request.param == "sync" else httpx.AsyncClient
        opened = client_of(request.param, "http://server", retry=QUICK, http=kind(transport=transport))
        entered.append(opened)
        return opened.__enter__()

    yield made
    for opened in entered:
        opened.__exit__(None, None, None)


class Records:
    """A stream of seven records, one second apart; offsets are their numbers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        self.asked.append(query)
        assert request.url.path == "/v1/stream/__ds/records"
        assert query["path"] == "a/b c"
        if "at" in query:
            wanted = datetime.fromisoformat(query["at"])
            begin = next((number for number in range(COUNT) if self.time(number) >= wanted), COUNT)
        else:
            begin = max(0, int(query["offset"]))
        until = int(query.get("until", COUNT))
        end = min(until, begin + int(query["limit"]))
        records = [
            {"offset": f"{number}", "next_offset": f"{number + 1}", "time": self.time(number).isoformat()}
            for number in range(begin, end)
        ]
        page = {"offset": f"{begin}", "next_offset": f"{end}", "up_to_date": end == COUNT, "records": records}
        return httpx.Response(200, json=page)

    @staticmethod
    def time(number: int) -> datetime:
        return START + timedelta(seconds=number)


def test_all_pages_are_fetched_as_they_are_needed(connect: Connect) -> None:
    server = Records()
    records = iter(connect(server).stream("a/b c").records(page=3))
    assert server.asked == []
    assert next(records) == RecordInfo("0", "1", START)
    assert len(server.asked) == 1
    rest = list(records)
    assert [record.offset for record in rest] == ["1", "2", "3", "4", "5", "6"]
    assert rest[-1].time == START + timedelta(seconds=6)
    assert rest[-1].time.utcoffset() == timedelta()
    assert [query["offset"] for query in server.asked] == ["-1", "3", "6"]
    assert all("until" not in query and query["limit"] == "3" for query in server.asked)


def test_a_range_ends_at_its_end(connect: Connect) -> None:
    server = Records()
    stream = connect(server).stream("a/b c")
    assert [record.offset for record in stream.records(offset="2", until="6", page=2)] == ["2", "3", "4", "5"]
    assert [query["offset"] for query in server.asked] == ["2", "4"]
    assert list(stream.records(offset="7")) == []


def test_a_server_that_never_says_it_is_done_is_not_asked_for_ever(connect: Connect) -> None:
    empty = {"offset": "3", "next_offset": "3", "up_to_date": False, "records": []}
    assert list(connect(lambda request: httpx.Response(200, json=empty)).stream("s").records()) == []


@pytest.mark.parametrize(
    ("time", "text", "offset"),
    [
        (START, "2026-11-15T19:30:00.000Z", "0"),
        (START + timedelta(microseconds=1), "2026-11-15T19:30:00.001Z", "1"),
        (START + timedelta(microseconds=999_001), "2026-11-15T19:30:01.000Z", "1"),
        ((START + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=-3))), "2026-11-15T19:30:02.000Z", "2"),
        (START - timedelta(days=1), "2026-11-14T19:30:00.000Z", "0"),
        (START + timedelta(days=1), "2026-11-16T19:30:00.000Z", "7"),
    ],
)
def test_the_offset_at_a_time(connect: Connect, time: datetime, text: str, offset: str) -> None:
    server = Records()
    assert connect(server).stream("a/b c").offset_at(time) == offset
    [query] = server.asked
    assert query == {"path": "a/b c", "at": text, "limit": "1"}


def test_a_time_needs_a_time_zone(connect: Connect) -> None:
    server = Records()
    stream = connect(server).stream("a/b c")
    with pytest.raises(ValueError, match="time zone"):
        stream.offset_at(datetime(2026, 11, 15))
    with pytest.raises(ValueError, match="out of range"):
        stream.offset_at(datetime.max.replace(tzinfo=UTC))
    assert server.asked == []


def _problem(status: int, code: str) -> httpx.Response:
    headers = {"content-type": "application/problem+json"}
    return httpx.Response(status, headers=headers, json={"type": f"urn:headwater:{code}", "detail": "because"})


def _found() -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "application/json", "stream-next-offset": "1"})


@pytest.mark.parametrize(
    "answer",
    [lambda: httpx.Response(404), lambda: httpx.Response(405), lambda: _problem(404, "unknown-route")],
    ids=["404", "405", "unknown route"],
)
def test_a_server_without_record_times_is_recognised(connect: Connect, answer: Callable[[], httpx.Response]) -> None:
    stream = connect(lambda request: _found() if request.method == "HEAD" else answer()).stream("s")
    for ask in (stream.records, stream.record_times, lambda: [stream.offset_at(START)]):
        with pytest.raises(MissingExtensionError, match="does not offer record times"):
            list(ask())


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(200, content=b"<html>"),
        lambda: httpx.Response(200, json=[1, 2]),
        lambda: httpx.Response(200, json={"offset": "1", "records": "none"}),
        lambda: httpx.Response(200, content=b'{"offset": "\xff"}'),
    ],
    ids=["HTML", "messages", "other JSON", "not UTF-8"],
)
def test_a_broken_page_of_records_is_another_error(connect: Connect, answer: Callable[[], httpx.Response]) -> None:
    stream = connect(lambda request: _found() if request.method == "HEAD" else answer()).stream("s")
    for ask in (stream.records, stream.record_times, lambda: [stream.offset_at(START)]):
        with pytest.raises(ProtocolError, match="does not offer record times") as error:
            list(ask())
        assert type(error.value) is ProtocolError


def test_other_errors_are_what_they_are(connect: Connect) -> None:
    missing = connect(lambda request: _problem(404, "stream-not-found"))
    with pytest.raises(StreamNotFoundError):
        list(missing.stream("s").records())
    gone = connect(lambda request: _problem(410, "offset-gone"))
    with pytest.raises(OffsetGoneError):
        list(gone.stream("s").records(offset="5"))
    with pytest.raises(ValueError, match="not a stream of this client's server"):
        gone.stream("http://elsewhere/v1/stream/s").offset_at(START)
