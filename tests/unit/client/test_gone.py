"""Readers whose position is gone: they raise an error that names the first offset, or begin again and tell it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headwater.client import Client, OnGone, Position, Retry
from headwater.errors import HeadwaterError, OffsetGoneError, OffsetTrimmedError, StreamGoneError

QUICK = Retry(attempts=4, first_s=0.0001, most_s=0.001)
PATHS = "http://server/v1/stream/"


def offset(number: int, stream: int = 5) -> str:
    return f"{stream:016d}_{number:016d}"


class Numbers:
    """A stream of numbers, 10 bytes each, of which the first ones can be trimmed. A response has at most three."""

    def __init__(self, count: int, *, is_ours: bool = True) -> None:
        self.id, self.first, self.count = 5, 0, count
        self.closed = False
        self.asked: list[tuple[str, str]] = []
        self.revalidated: list[str] = []
        self.before: Callable[[str], Any] = lambda asked: None
        self._is_ours = is_ours

    def __call__(self, request: httpx.Request) -> httpx.Response:
        start = request.url.params["offset"]
        live = request.url.params.get("live", "")
        self.before(start)
        self.asked.append((start, live))
        if request.headers.get("cache-control") == "no-cache":
            self.revalidated.append(start)
        begin = self.first if start == "-1" else int(start.partition("_")[2]) // 10
        if start != "-1" and (begin < self.first or not start.startswith(f"{self.id:016d}_")):
            return self._gone(start)
        if live == "sse":
            return self._feed(begin)
        end = min(self.count, begin + 3)
        headers = {"content-type": "application/json", "stream-next-offset": offset(end * 10, self.id)}
        if start == "-1" and self._is_ours:
            headers["stream-first-offset"] = offset(self.first * 10, self.id)
        if end == self.count:
            headers["stream-up-to-date"] = "true"
            if self.closed:
                headers["stream-closed"] = "true"
        return httpx.Response(200, headers=headers, json=list(range(begin, end)))

    def _feed(self, begin: int) -> httpx.Response:
        data = "".join(f"event: data\ndata: [{number}]\n\n" for number in range(begin, self.count))
        closed = ',"streamClosed":true' if self.closed else ""
        control = f'event: control\ndata: {{"streamNextOffset":"{offset(self.count * 10, self.id)}"{closed}}}\n\n'
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data + control)

    def _gone(self, start: str) -> httpx.Response:
        if not self._is_ours:
            return httpx.Response(410)
        kind = "offset-trimmed" if start.startswith(f"{self.id:016d}_") else "offset-gone"
        headers = {"content-type": "application/problem+json"}
        if kind == "offset-trimmed":
            headers["stream-first-offset"] = offset(self.first * 10, self.id)
        document = {"type": f"urn:headwater:{kind}", "detail": "why"}
        return httpx.Response(410, headers=headers, json=document)

    def client(self, **options: Any) -> Client:
        return Client("http://server", http=httpx.Client(transport=httpx.MockTransport(self)), retry=QUICK, **options)


def test_the_error_names_the_first_offset() -> None:
    numbers = Numbers(9)
    numbers.first = 6
    with numbers.client() as client, pytest.raises(OffsetTrimmedError) as caught:
        client.stream("s").read(offset=offset(20)).all()
    assert caught.value.first_offset == offset(60)


def test_410_of_another_server_is_that_of_the_offset_or_of_the_stream() -> None:
    numbers = Numbers(9, is_ours=False)
    numbers.first = 6
    with numbers.client() as client, pytest.raises(OffsetGoneError):
        client.stream("s").read(offset=offset(20)).all()
    gone = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(410)))
    with Client("http://server", http=gone, retry=QUICK) as client:
        with pytest.raises(StreamGoneError):
            client.stream("s").read(offset=offset(20), on_gone="restart").all()
        with pytest.raises(StreamGoneError):
            client.stream("s").read().all()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_read_begins_again_at_what_is_there_and_tells_so(is_ours: bool, caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(9, is_ours=is_ours)
    numbers.first = 6
    with numbers.client() as client, caplog.at_level(logging.WARNING):
        batches = list(client.stream("s").read(offset=offset(20), on_gone="restart").batches())
    assert [(batch.items, batch.restarted) for batch in batches] == [([], True), ([6, 7, 8], False)]
    assert batches[0].position == Position()
    assert "is read again from its beginning" in caplog.text
    assert numbers.asked == [(offset(20), ""), ("-1", "")]
    assert numbers.revalidated == ["-1"]  # a cache may still have the beginning that was trimmed


def test_a_function_is_told_of_the_error_and_can_end_the_read() -> None:
    numbers = Numbers(9)
    failures: list[HeadwaterError] = []
    numbers.first = 6
    with numbers.client() as client:
        assert client.stream("s").read(offset=offset(20), on_gone=failures.append).all() == [6, 7, 8]

        def refuse(error: Exception) -> None:
            raise KeyError("stop")

        with pytest.raises(KeyError):
            client.stream("s").read(offset=offset(20), on_gone=refuse).all()
    assert [type(error) for error in failures] == [OffsetTrimmedError]


def test_a_stream_that_was_created_again_is_read_by_the_same_mechanism() -> None:
    numbers = Numbers(3)
    numbers.id = 6
    with numbers.client() as client:
        with pytest.raises(OffsetGoneError) as caught:
            client.stream("s").read(offset=offset(20)).all()
        assert type(caught.value) is OffsetGoneError
        assert client.stream("s").read(offset=offset(20), on_gone="restart").all() == [0, 1, 2]


def test_a_catch_up_that_is_trimmed_in_the_middle() -> None:
    numbers = Numbers(12)

    def trim(start: str) -> None:
        if start == offset(60):
            numbers.first = 10

    numbers.before = trim
    with numbers.client() as client:
        reader = client.stream("s").read(on_gone="restart")
        batches = [(batch.items, batch.restarted) for batch in reader.batches()]
    assert batches == [([0, 1, 2], False), ([3, 4, 5], False), ([], True), ([10, 11], False)]
    assert reader.offset == offset(120)


@pytest.mark.parametrize("live", ["sse", "long-poll", True])
def test_a_live_read_that_ends_because_of_a_trim(live: Any) -> None:
    numbers = Numbers(3)

    def trim(offset: str) -> None:
        if len(numbers.asked) == 2:  # after a catch-up and one live request
            numbers.count, numbers.first, numbers.closed = 12, 10, True

    numbers.before = trim
    with numbers.client() as client:
        batches = list(client.stream("s").read(live=live, on_gone="restart").batches())
    items = [(batch.items, batch.restarted) for batch in batches if batch.items or batch.restarted]
    assert items == [([0, 1, 2], False), ([], True), ([10, 11], False)]
    assert batches[-1].closed


def test_a_position_inside_the_first_response_is_counted_from_the_first_offset() -> None:
    """Counted from -1 it would be another position after a trim, and messages would be left out."""
    numbers = Numbers(9)
    numbers.first = 3
    with numbers.client() as client:
        reader = client.stream("s").read()
        assert [next(iter(reader)), next(iter(reader))] == [3, 4]
        assert reader.position == Position(offset(30), 2, offset(60))
        numbers.first = 6
        with pytest.raises(OffsetTrimmedError):
            client.stream("s").read(offset=reader.position).all()


def test_messages_that_were_delivered_in_part_are_not_counted_in_other_ones() -> None:
    """A large first response is lost in the middle, and its beginning is trimmed before it is requested again."""
    from headwater.client.reading import Reading

    numbers = Numbers(9)
    responses = [httpx.ReadError("lost")]

    def handle(request: httpx.Request) -> httpx.Response:
        response = numbers(request)
        if responses and response.status_code == 200:
            failure = responses.pop()

            def body() -> Any:
                yield response.content[:4]
                numbers.first = 3
                raise failure

            return httpx.Response(200, headers=response.headers, content=body())
        return response

    with Client("http://server", http=httpx.Client(transport=httpx.MockTransport(handle)), retry=QUICK) as client:
        stream = client.stream("s")
        reader = stream.read(on_gone="restart")
        session = client._session
        reader._reading_from = lambda position: Reading(
            session, stream.url, Any, position, None, False, piece_bytes=1, on_gone="restart"
        )
        reader._begin()
        batches = [(batch.items, batch.restarted) for batch in reader.batches()]
    assert batches[0] == ([0], False)
    assert ([], True) in batches
    assert [item for items, _ in batches for item in items] == [0, 3, 4, 5, 6, 7, 8]


def test_a_server_that_trims_faster_than_it_is_read_is_asked_slowly() -> None:
    numbers, waits = Numbers(400), []

    def trim(offset: str) -> None:
        if offset != "-1" and numbers.first < 60:
            numbers.first += 10

    numbers.before = trim
    options: dict[str, Any] = {"on_error": lambda report: waits.append(report.attempt)}
    with numbers.client(**options) as client:
        items = client.stream("s").read(on_gone="restart").all()
    assert items[-1] == 399
    assert items == sorted(set(items))
    assert waits == [1, 2, 3, 4, 5][: len(waits)]
    assert waits


@pytest.mark.parametrize("on_gone", ["again", None, 3])
def test_other_values_are_refused(on_gone: OnGone) -> None:
    with Numbers(1).client() as client:
        with pytest.raises(ValueError, match="on_gone"):
            client.stream("s").read(on_gone=on_gone)
        with pytest.raises(ValueError, match="on_gone"):
            client.follow({"s": "-1"}, on_gone=on_gone)
        with pytest.raises(ValueError, match="on_gone"):
            client.table("t").follow(on_gone=on_gone)
