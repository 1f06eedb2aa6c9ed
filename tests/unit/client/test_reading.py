"""Reads against a scripted server: what is asked, and what is made of the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx
import pytest

from headwater import limits
from headwater.client import Client, Position, Retry, Timeouts
from headwater.client.effects import Effect, Emit, HttpReply, Open, Receive, RunningFlow, Sleep
from headwater.client.reading import Reading
from headwater.client.session import Session
from headwater.client.sync.transport import Transport
from headwater.errors import (
    ForbiddenError,
    HeadwaterError,
    InternalError,
    MessageError,
    NetworkError,
    ProtocolError,
    StreamNotFoundError,
    UnauthorizedError,
)
from headwater.limits import Limits
from headwater.protocol.streams.sse import EventReader
from tests.metrics import wait_for_readers_of
from tests.servers import serving
from tests.waiting import LIMIT_S

QUICK = Retry(attempts=4, first_s=0.0001, most_s=0.001)
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, **options: Any) -> Client:
    return Client("http://server", http=httpx.Client(transport=httpx.MockTransport(handler)), retry=QUICK, **options)


def answer(body: bytes = b"[]", offset: str = "1", *, up_to_date: bool = True, closed: bool = False) -> httpx.Response:
    headers = {"content-type": "application/json", "stream-next-offset": offset}
    if up_to_date:
        headers["stream-up-to-date"] = "true"
    if closed:
        headers["stream-closed"] = "true"
    return httpx.Response(200, headers=headers, content=body)


def events(*frames: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(frames).encode())


def test_a_refused_token_is_fetched_again_and_headers_stay() -> None:
    tokens = iter(["old", "new"])
    queries: list[tuple[str, str]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        queries.append((request.headers["authorization"], request.headers["x-tenant"]))
        if request.headers["authorization"] == "Bearer old":
            return httpx.Response(401)
        return answer(b"[1]")

    with client(handle, token=lambda: next(tokens), headers={"X-Tenant": "t"}) as there:
        assert there.stream("s").read().all() == [1]
        there.stream("s").read().all()
    assert queries == [("Bearer old", "t"), ("Bearer new", "t"), ("Bearer new", "t")]


def test_a_token_that_is_refused_for_good_ends_the_read() -> None:
    for token in ("fixed", lambda: "fetched"):
        with client(lambda request: httpx.Response(401), token=token) as there:
            with pytest.raises(UnauthorizedError):
                there.stream("s").read(live=True).all()
    with client(lambda request: httpx.Response(403)) as there, pytest.raises(ForbiddenError):
        there.stream("s").read().all()


def test_errors_are_told_and_a_hook_can_end_it() -> None:
    failures: list[HeadwaterError] = []
    with client(lambda request: httpx.Response(500), on_error=lambda report: failures.append(report.error)) as there:
        with pytest.raises(InternalError):
            there.stream("s").read().all()
    assert [type(error) for error in failures] == [InternalError] * 3

    def stop(report: Any) -> None:
        raise KeyboardInterrupt

    with client(lambda request: httpx.Response(500), on_error=stop) as there, pytest.raises(KeyboardInterrupt):
        there.stream("s").read().all()


def test_once_answered_a_read_never_gives_up() -> None:
    requests = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        if requests == 1:
            return answer(b"[1]", "1", up_to_date=False)
        if requests < 100:
            raise httpx.ConnectError("refused")
        return answer(b"[2]", "2")

    with client(handle) as there:
        assert there.stream("s").read().all() == [1, 2]


def test_a_server_that_never_answers_is_given_up() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with client(handle) as there, pytest.raises(NetworkError) as refused:
        there.stream("s").read(live=True).all()
    assert "http://server/v1/stream/s" in str(refused.value)
    assert refused.value.retryable


def test_another_website_is_recognised() -> None:
    html = httpx.Response(200, headers={"content-type": "text/html"}, content=b"<html>")
    with client(lambda request: html) as there, pytest.raises(ProtocolError):
        there.stream("s").read().all()


def test_an_answer_that_is_never_json_is_an_error_in_the_end() -> None:
    with client(lambda request: answer(b"[1,")) as there, pytest.raises(ProtocolError):
        there.stream("s").read().all()


def _live(sse: Handler) -> tuple[Handler, list[str]]:
    """A server with a message at the tail, one more by long-poll, and whatever it does about server-sent events."""
    modes: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        live = request.url.params.get("live", "catch-up")
        modes.append(live)
        if live == "sse":
            return sse(request)
        if live == "long-poll":
            return answer(b"[2]", "2", closed=True)
        return answer(b"[1]", "1")

    return handle, modes


@pytest.mark.parametrize(
    "sse",
    [
        lambda request: httpx.Response(200, headers={"content-type": "text/html"}, content=b"no"),
        lambda request: httpx.Response(406),
        lambda request: events(),
        lambda request: events("event: data\ndata: [2]\n"),
    ],
    ids=["another type", "refused", "empty", "never a whole event"],
)
def test_live_changes_to_long_poll_where_events_do_not_get_through(sse: Handler) -> None:
    handle, modes = _live(sse)
    with client(handle) as there:
        assert there.stream("s").read(live=True).all() == [1, 2]
    assert modes[-1] == "long-poll"
    assert "sse" in modes


def test_silence_counts_as_not_getting_through() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nothing")

    handle, modes = _live(silent)
    with client(handle, timeouts=Timeouts(sse_first_s=0.01)) as there:
        assert there.stream("s").read(live=True).all() == [1, 2]
    assert modes == ["catch-up", "sse", "sse", "long-poll"]


def test_who_insists_on_events_is_told_that_there_are_none() -> None:
    handle, _ = _live(lambda request: httpx.Response(200, headers={"content-type": "text/html"}))
    with client(handle) as there, pytest.raises(ProtocolError):
        there.stream("s").read(live="sse").all()


def test_events_count_only_with_their_control_event() -> None:
    control = 'event: control\ndata: {{"streamNextOffset":"{}","streamCursor":"c{}"}}\n\n'
    feeds = iter(
        [
            events("event: data\ndata: [2]\n\n", control.format(2, 2), "event: data\ndata: [3]\n\n"),
            events("event: data\ndata: [3]\n\n", control.format(3, 3), 'event: control\ndata: {"streamNextOffset":"3"'),
            events('event: control\ndata: {"streamNextOffset":"3","streamClosed":true}\n\n'),
        ]
    )
    queries: list[str] = []

    def feed(request: httpx.Request) -> httpx.Response:
        queries.append(f"{request.url.params['offset']} {request.url.params.get('cursor')}")
        return next(feeds)

    handle, _ = _live(feed)
    with client(handle) as there:
        assert there.stream("s").read(live=True).all() == [1, 2, 3]
    assert queries == ["1 None", "2 c2", "3 c3"]


def test_a_deletion_ends_a_feed_at_once() -> None:
    deleted = 'event: control\ndata:{"streamNextOffset":"1","streamDeleted":true}\n\n'

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.params.get("live") == "sse":
            return events(deleted)
        return answer(b"[1]") if request.url.params["offset"] == "-1" else httpx.Response(404)

    patient = Retry(attempts=4, first_s=600.0, most_s=600.0)  # a retry would fail the test
    http = httpx.Client(transport=httpx.MockTransport(handle))
    with Client("http://server", http=http, retry=patient) as there, pytest.raises(StreamNotFoundError):
        there.stream("s").read(live="sse").all()


def test_a_server_that_neither_waits_nor_moves_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = 0
    pauses: list[float] = []

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        if requests == 5:
            return answer(b"[]", "1", closed=True)
        return answer(b"[]", "1", up_to_date="live" in request.url.params or requests == 1)

    def perform(transport: Transport, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return pauses.append(effect.seconds)
        return performed(transport, effect)

    performed = Transport.perform
    monkeypatch.setattr(Transport, "perform", perform)
    with client(handle) as there:
        there._session.clock = lambda: 0.0  # every answer comes at once
        assert there.stream("s").read(live="long-poll").all() == []
    assert pauses == [limits.READ_EMPTY_POLL_S] * 3  # the first answer is not one of a long-poll, the last one ends it


def test_a_signed_url_keeps_its_query() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.params["signature"] == "x"
        return answer(b"[1]")

    with client(handle) as there:
        assert there.stream("http://server/v1/stream/s?signature=x").read().all() == [1]


def test_wrong_arguments_are_refused_at_once() -> None:
    with client(lambda request: answer()) as there:
        for wrong in ({"live": "websocket"}, {"skip": -1}, {"skip": 1, "offset": "now"}):
            with pytest.raises(ValueError, match=r"live|skip"):
                there.stream("s").read(**wrong)
        with pytest.raises(ValueError, match="empty"):
            there.stream("/")
    for wrong_url in ("ftp://x", "x", "http://x?y", ""):
        with pytest.raises(ValueError, match="URL"):
            Client(wrong_url)


MESSAGES_HELD_MAX = 2_500  # of 0.9 kB, 100 in a chunk; a piece has 1 MiB


def _huge(chunks: int) -> Iterator[bytes]:
    yield b"["
    for number in range(chunks):
        yield b"".join(b'{"n":%d,"pad":"%b"},' % (number * 100 + n, b"x" * 900) for n in range(100))
    yield b"null]"


def test_a_long_answer_is_delivered_as_it_arrives_and_resumed() -> None:
    """20 MB in one answer, which breaks off twice: each message once, and soon after it was received."""
    session = Session("http://server", None, None, None, QUICK, Timeouts(), None)
    reading = Reading(session, "http://server/v1/stream/s", Any, Position(), None, False, piece_bytes=1 << 20)
    running_flow = RunningFlow(reading.flow())
    body: Iterator[bytes] = iter(())
    breaks = [50, 150, 1 << 60]
    received = expected = 0  # chunks of an answer, and messages in all
    effect = running_flow.go()
    while effect is not None:
        outcome: Any = None
        if isinstance(effect, Open):
            body, received = _huge(220), 0
            outcome = HttpReply(
                200, {"content-type": "application/json", "stream-next-offset": "9", "stream-up-to-date": "true"}
            )
        elif isinstance(effect, Receive):
            received += 1
            assert received * 100 - expected <= MESSAGES_HELD_MAX
            outcome = NetworkError("cut") if received == breaks[0] else next(body, b"")
            if isinstance(outcome, NetworkError):
                breaks.pop(0)
        elif isinstance(effect, Emit):
            for item in effect.batch.items:
                assert item is None or item["n"] == expected
                expected += item is not None
        effect = running_flow.go(outcome)
    assert expected == 22_000
    assert reading.position == Position("9")


def test_after_an_error_the_reader_goes_on_where_it_was() -> None:
    answers = iter(
        [answer(b"[1,2]", "1", up_to_date=False), httpx.Response(403), httpx.Response(403), answer(b"[3]", "2")]
    )
    with client(lambda request: next(answers)) as there:
        reader = there.stream("s").read()
        items = iter(reader)
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(ForbiddenError):
            next(items)
        assert list(reader) == [3]
        assert list(reader) == []


def test_two_iterators_over_one_reader_share_what_arrives() -> None:
    with client(lambda request: answer(b"[0,1,2,3,4,5]", "1")) as there:
        reader = there.stream("s").read()
        one, other = iter(reader), iter(reader)
        seen = [next(one), next(other), next(one), *other, *one]
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


def _text(*parts: bytes) -> Handler:
    def handle(request: httpx.Request) -> httpx.Response:
        position = request.url.params["offset"]
        at = 0 if position == "-1" else int(position)
        last = at + 1 >= len(parts)
        headers = {"content-type": "text/plain", "stream-next-offset": str(min(at + 1, len(parts)))}
        if last:
            headers["stream-up-to-date"] = "true"
        return httpx.Response(200, headers=headers, content=parts[at] if at < len(parts) else b"")

    return handle


def test_a_character_in_two_answers_is_resumed_before_it() -> None:
    text = "caf\u00e9 \u20ac!".encode()
    parts = [text[:4], text[4:7], text[7:8], text[8:]]
    with client(_text(*parts)) as there:
        stream = there.stream("s")
        whole = "".join(stream.read().all())
        assert whole == text.decode()
        reader = stream.read()
        seen = ""
        for batch in reader.batches():
            seen += "".join(batch.items)
            rest = "".join(stream.read(offset=batch.position).all())
            assert seen + rest == whole


def test_text_before_what_is_none_is_delivered_and_the_rest_can_be_reached() -> None:
    with client(_text(b"hello \xff world")) as there:
        stream = there.stream("s")
        items = iter(stream.read())
        assert next(items) == "hello "
        with pytest.raises(MessageError) as refused:
            next(items)
        assert stream.read(offset=refused.value.position, skip=1).all() == [" world"]


def test_a_gateway_that_has_no_events_is_left_for_long_poll() -> None:
    handle, modes = _live(lambda request: httpx.Response(504))
    with client(handle) as there:
        assert there.stream("s").read(live=True).all() == [1, 2]
    assert modes[-1] == "long-poll"


def test_a_server_that_restarts_is_not_taken_for_a_network_without_events() -> None:
    control = 'event: control\ndata: {"streamNextOffset":"1","streamCursor":"c","upToDate":true}\n\n'
    last = 'event: data\ndata: [2]\n\nevent: control\ndata: {"streamNextOffset":"2","streamClosed":true}\n\n'
    feeds = iter([control, *[None] * 10, last])

    def feed(request: httpx.Request) -> httpx.Response:
        frames = next(feeds)
        if frames is None:
            raise httpx.ConnectError("refused")
        return events(frames)

    handle, modes = _live(feed)
    with client(handle) as there:
        assert there.stream("s").read(live=True).all() == [1, 2]
    assert modes[-1] == "sse"


def test_an_until_behind_the_start_ends_at_once_and_moves_nothing() -> None:
    with client(lambda request: answer(b"[9]", "5")) as there:
        reader = there.stream("s").read(offset="4", until="2")
        assert reader.all() == []
        assert reader.offset == "4"
        assert there.stream("s").read(offset="now", until="2").all() == []


@pytest.mark.parametrize("until", range(1, 12))
def test_a_server_that_cuts_anywhere_and_knows_no_until(until: int) -> None:
    """Offsets are positions; answers end at multiples of 5, and at the tail."""

    def handle(request: httpx.Request) -> httpx.Response:
        position = request.url.params["offset"]
        at = 0 if position == "-1" else int(position)
        end = min(12, at // 5 * 5 + 5)
        return answer(str(list(range(at, end))).encode(), f"{end:02}", up_to_date=end == 12)

    with client(handle) as there:
        assert there.stream("s").read(until=f"{until:02}").all() == list(range(until))


def test_another_website_stores_nothing() -> None:
    page = httpx.Response(200, headers={"content-type": "text/html"}, content=b"<h1>Please log in</h1>")
    with client(lambda request: page) as there:
        stream = there.stream("s", content_type="application/json")
        for act in (stream.create, stream.close, lambda: stream.append(1)):
            with pytest.raises(ProtocolError):
                act()
        with pytest.raises(ProtocolError), stream.producer() as producer:
            producer.append(1)


def test_a_plain_append_is_repeated_only_if_nothing_was_done() -> None:
    problem = {"content-type": "application/problem+json"}
    ours = httpx.Response(503, headers=problem, content=b'{"type":"urn:headwater:overloaded"}')
    stored = httpx.Response(204, headers={"stream-next-offset": "1"})

    def run(first: httpx.Response | Exception) -> int:
        answers = iter([first, stored])
        requests = 0

        def handle(request: httpx.Request) -> httpx.Response:
            nonlocal requests
            requests += 1
            response = next(answers)
            if isinstance(response, Exception):
                raise response
            return response

        with client(handle) as there:
            stream = there.stream("s", content_type="application/json")
            try:
                stream.append(1)
            except HeadwaterError:
                return -requests
        return requests

    assert run(ours) == 2
    assert run(httpx.Response(429)) == 2
    assert run(httpx.ConnectError("refused")) == 2
    assert run(httpx.Response(503)) == -1
    assert run(httpx.Response(500)) == -1
    assert run(httpx.ReadError("reset")) == -1


def test_header_values_are_checked_before_they_are_sent() -> None:
    with client(lambda request: answer(), token="s\u00e9cret") as there:
        with pytest.raises(ValueError, match="the token") as refused:
            there.stream("s").head()
        assert "cret" not in str(refused.value)
    with client(lambda request: answer()) as there, pytest.raises(ValueError, match="content-type"):
        there.stream("s").create(content_type="text/plain\r\nx: y")
    with pytest.raises(ValueError, match="Port"):
        Client("http://127.0.0.1:99999")


def test_a_long_line_is_read() -> None:
    """`bench/bounds_bench.py` measures that it is read in time."""
    reader = EventReader()
    line = b"data: " + b"x" * (32 << 20) + b"\n\n"
    seen = [event for at in range(0, len(line), 65_536) for event in reader.feed(line[at : at + 65_536])]
    assert [len(data) for _, data in seen] == [32 << 20]


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_reader_is_closed_from_another_thread(live: Literal["sse", "long-poll"]) -> None:
    """A feed ends at once: nothing else ends it. A long-poll ends with its answer."""
    seen: list[Any] = []
    with (
        serving(Limits(long_poll_s=1, sse_keep_alive_s=600, sse_lifetime_s=600)) as server,
        Client(server.url, timeouts=Timeouts(sse_idle_s=600, sse_first_s=600)) as there,
    ):
        stream = there.stream("close")
        stream.create()
        reader = stream.read(live=live)
        reading = threading.Thread(target=lambda: seen.extend(reader))
        reading.start()
        wait_for_readers_of(server, live)
        reader.close()
        reading.join(LIMIT_S)
        assert not reading.is_alive()
    assert seen == []
