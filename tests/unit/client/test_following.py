"""Many streams over one connection: against a server on a thread, with both shells, and against scripted responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import httpx
import msgspec
import pytest

from headwater import limits
from headwater.client import Client, Follow, Position, Retry, StreamBatch
from headwater.errors import (
    DamagedDataError,
    ForbiddenError,
    HeadwaterError,
    InvalidPathError,
    MessageError,
    NetworkError,
    OffsetGoneError,
    OffsetLostError,
    OffsetTrimmedError,
    ProtocolError,
    StreamNotFoundError,
    UnauthorizedError,
)
from headwater.limits import Limits
from headwater.log.content import ContentKind
from headwater.protocol.streams.combined import control_lines, data_lines
from tests.servers import Server, serving
from tests.shells import SHELLS, client_of
from tests.waiting import wait_until

QUICK = Retry(attempts=4, first_s=0.0001, most_s=0.001)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Limits(sse_lifetime_s=600)) as server:
        yield server


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with client_of(request.param, server.url) as client:
        yield client


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"f/{abs(hash(request.node.name)):x}"


def collect(
    follow: Follow[Any], until: Callable[[dict[str, list[Any]], StreamBatch[Any]], object]
) -> dict[str, list[Any]]:
    """The items of each stream, up to the batch for which `until` says so."""
    items: dict[str, list[Any]] = {}
    for batch in follow:
        items.setdefault(batch.stream, []).extend(batch.items)
        if until(items, batch):
            break
    return items


def all_up_to_date(count: int) -> Callable[[dict[str, list[Any]], StreamBatch[Any]], bool]:
    """True for the batch with which the last of so many streams is up to date."""
    streams: set[str] = set()

    def is_last(_: dict[str, list[Any]], batch: StreamBatch[Any]) -> bool:
        if batch.up_to_date:
            streams.add(batch.stream)
        return len(streams) == count

    return is_last


def test_streams_are_followed_from_their_offsets(client: Client, prefix: str) -> None:
    a, b, c = (client.stream(f"{prefix}/{name}") for name in "abc")
    for stream in (a, b, c):
        stream.create()
    middle = a.append({"n": 1}).offset
    a.append({"n": 2})
    b.append({"n": "old"})
    with client.follow({f"{prefix}/a": middle, f"{prefix}/b": "now", f"/{prefix}/c": "-1"}) as follow:
        collect(follow, all_up_to_date(3))
        b.append({"n": 3})
        c.append_many([{"n": 4}, {"n": 5}])
        items = collect(follow, lambda items, _: len(items) == 2)
        assert items == {f"{prefix}/b": [{"n": 3}], f"{prefix}/c": [{"n": 4}, {"n": 5}]}
        assert {path: at.offset for path, at in follow.positions.items()} == {
            f"{prefix}/{name}": stream.head().tail_offset for name, stream in (("a", a), ("b", b), ("c", c))
        }


def test_streams_are_added_and_dropped_while_it_waits(client: Client, prefix: str) -> None:
    paths = [f"{prefix}/{n}" for n in range(4)]
    for path in paths:
        client.stream(path).create(messages=[path])
    received: list[StreamBatch[Any]] = []
    with client.follow({paths[0]: "-1"}) as follow:

        def run() -> None:
            received.extend(follow)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: any(batch.up_to_date for batch in received))
        for path in paths[1:]:  # while the thread waits for data
            follow.add(path)
            wait_until(
                lambda: (
                    {one for one in paths if one in follow.positions}
                    <= {batch.stream for batch in received if batch.items}
                )
            )
        follow.drop(paths[0])
        client.stream(paths[0]).append("dropped")
        client.stream(paths[1]).append("last")
        wait_until(lambda: any(batch.items == ["last"] for batch in received))
        assert set(follow.positions) == set(paths[1:])
        follow.close()
        thread.join()
    items = [(batch.stream, item) for batch in received for item in batch.items]
    assert sorted(items) == sorted([*((path, path) for path in paths), (paths[1], "last")])


def test_a_wrong_call_is_refused(client: Client, prefix: str) -> None:
    client.stream(prefix).create()
    follow = client.follow({prefix: "-1"})
    with pytest.raises(ValueError, match="is followed already"):
        follow.add(f"/{prefix}")
    with pytest.raises(ValueError, match="is not followed"):
        follow.drop("other")
    with pytest.raises(ValueError, match="skip counts messages"):
        follow.add("other", Position("now", 1))
    with pytest.raises(InvalidPathError, match="empty segments"):
        client.follow({"a//b": "-1"})
    assert set(follow.positions) == {prefix}
    with client.follow({}) as nothing:
        assert list(nothing) == []


def test_the_iteration_ends_with_the_last_stream_and_goes_on_if_one_is_added(client: Client, prefix: str) -> None:
    a, b = f"{prefix}/a", f"{prefix}/b"
    client.stream(a).create(messages=[1])
    client.stream(b).create(messages=[2])
    with client.follow({a: "-1", b: "-1"}) as follow:
        client.stream(a).close()
        client.stream(b).delete()
        with pytest.raises(StreamNotFoundError) as caught:
            list(follow)
        assert caught.value.stream == b
        follow.drop(b)
        batches = list(follow)
        assert [batch.items for batch in batches if batch.items] == [[1]]
        assert (batches[-1].stream, batches[-1].closed) == (a, True)
        client.stream(b).create(messages=[3])
        follow.add(b)
        assert collect(follow, lambda _, batch: batch.up_to_date) == {b: [3]}
        client.stream(b).delete()
        assert [(batch.stream, batch.deleted) for batch in follow] == [(b, True)]
        assert follow.positions == {}


def test_every_content_type_and_a_character_that_is_split(client: Client, prefix: str) -> None:
    text, blob = (
        client.stream(f"{prefix}/t", content_type="text/plain"),
        client.stream(f"{prefix}/b", content_type="x/y"),
    )
    text.create()
    blob.create()
    tea = "grün\r\n".encode()
    for part in (tea[:3], tea[3:]):
        text.append(part)
        blob.append(part)
    with client.follow({f"{prefix}/t": "-1", f"{prefix}/b": "-1"}) as follow:
        items = collect(follow, all_up_to_date(2))
        assert "".join(items[f"{prefix}/t"]) == tea.decode()
        assert b"".join(items[f"{prefix}/b"]) == tea
        text.append(tea[:3])
        assert collect(follow, lambda _, batch: batch.items) == {f"{prefix}/t": ["gr"]}
        kept = follow.positions[f"{prefix}/t"]
    text.append(tea[3:])
    with client.follow({f"{prefix}/t": kept}) as follow:  # the position is before the character
        assert "".join(collect(follow, lambda _, batch: batch.up_to_date)[f"{prefix}/t"]) == "ün\r\n"
    with client.follow({f"{prefix}/t": "-1"}, type=bytes) as follow:
        assert b"".join(collect(follow, lambda _, batch: batch.up_to_date)[f"{prefix}/t"]) == tea + tea


class Tea(msgspec.Struct):
    eur: float


def test_a_message_of_another_type_is_named_and_can_be_skipped(client: Client, prefix: str) -> None:
    path = f"{prefix}/a"
    client.stream(path).create(messages=[{"eur": 1}, {"eur": "two"}, {"eur": 3}])
    with client.follow({path: "-1"}, type=Tea) as follow:
        received: list[Tea] = []
        with pytest.raises(MessageError) as caught:
            collect(follow, lambda _, batch: received.extend(batch.items))
        assert received == [Tea(1)]
        assert (caught.value.stream, caught.value.position.skip) == (path, 1)
        follow.drop(path)
        follow.add(path, caught.value.position.after(1))
        assert collect(follow, lambda _, batch: batch.up_to_date) == {path: [Tea(3)]}


def test_a_thousand_characters_of_paths_are_posted(client: Client, prefix: str) -> None:
    paths = [f"{prefix}/{'x' * 100}/{n}" for n in range(100)]
    for path in paths:
        client.stream(path).create(messages=[path])
    assert sum(map(len, paths)) > limits.FOLLOW_URL_BYTES_MAX
    with client.follow(dict.fromkeys(paths, "-1")) as follow:
        items = collect(follow, lambda items, _: len(items) == 100)
    assert items == {path: [path] for path in paths}


# Scripted responses

OFFSETS = [f"{1:016d}_{n:016d}" for n in range(20)]


def data(path: str, messages: list[Any], offset: int) -> bytes:
    body = "".join(json.dumps(message) + "," for message in messages).encode()
    return data_lines(path, ContentKind.JSON, body, OFFSETS[offset]) + b"\n"


def control(path: str, offset: int, *facts: str, problem: bytes = b"") -> bytes:
    return control_lines(path, OFFSETS[offset], *facts, problem=problem) + b"\n"


class Script:
    """A server that sends one response after the other; an exception breaks the connection."""

    def __init__(self, *responses: bytes | httpx.Response | Exception) -> None:
        self._responses = list(responses)
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        query = request.content.decode() if request.method == "POST" else request.url.query.decode()
        pairs = parse_qsl(query)
        assert ("ids", "false") in pairs
        self.asked.append(dict(value.rsplit("@", 1) for name, value in pairs if name == "stream"))
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        if isinstance(response, httpx.Response):
            return response
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=response)

    def client(self, **options: Any) -> Client:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return Client("http://server", http=http, retry=QUICK, **options)


def problem(status: int, code: str, stream: str = "") -> httpx.Response:
    document = {"type": f"urn:headwater:{code}", "detail": "why", **({"stream": stream} if stream else {})}
    return httpx.Response(status, headers={"content-type": "application/problem+json"}, json=document)


def test_after_a_lost_connection_each_stream_continues_at_its_position() -> None:
    script = Script(
        data("a", [1], 1) + data("b", [10], 1) + data("a", [2], 2) + data("b", [11], 2)[:-9],  # cut off
        httpx.ReadError("lost"),
        data("b", [11], 2) + control("b", 2, "upToDate", "streamClosed"),
        control("a", 2, "upToDate", "streamClosed"),
    )
    with script.client() as client:
        items = collect(client.follow({"a": "-1", "b": "now"}), lambda *_: False)
    assert items == {"a": [1, 2], "b": [10, 11]}
    after = {"a": OFFSETS[2], "b": OFFSETS[1]}
    assert script.asked == [{"a": "-1", "b": "now"}, after, after, {"a": OFFSETS[2]}]


def test_what_arrives_of_a_stream_that_was_dropped_is_left_out() -> None:
    script = Script(data("a", [1], 1) + data("b", [2], 1) + data("a", [3], 2) + control("a", 2, "streamClosed"))
    with script.client() as client:
        follow = client.follow({"a": "-1", "b": "-1"})
        batches = []
        for batch in follow:
            batches.append((batch.stream, batch.items))
            if batch.items == [1]:
                follow.drop("b")
    assert batches == [("a", [1]), ("a", [3]), ("a", [])]


def test_a_stream_that_was_added_again_does_not_get_events_of_the_connection_before() -> None:
    script = Script(
        data("a", [1], 1) + data("a", [2], 2) + control("a", 2, "streamClosed"),
        data("a", [9], 9) + control("a", 9, "streamClosed"),
    )
    with script.client() as client:
        follow = client.follow({"a": "-1"})
        items = []
        for batch in follow:
            items += batch.items
            if batch.items == [1]:
                follow.drop("a")
                follow.add("a", OFFSETS[8])
    assert items == [1, 9]
    assert script.asked == [{"a": "-1"}, {"a": OFFSETS[8]}]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "stream-not-found", StreamNotFoundError),
        (403, "forbidden", ForbiddenError),
        (410, "offset-gone", OffsetGoneError),
        (410, "offset-lost", OffsetLostError),
    ],
)
def test_an_error_names_its_stream(status: int, code: str, kind: type[Exception]) -> None:
    script = Script(problem(status, code, "b"), data("a", [1], 1) + control("a", 1, "streamClosed"))
    with script.client() as client:
        follow = client.follow({"a": "-1", "b": "-1"})
        with pytest.raises(kind) as caught:
            list(follow)
        assert caught.value.stream == "b"  # type: ignore[attr-defined]
        follow.drop("b")
        assert [batch.items for batch in follow] == [[1], []]


@pytest.mark.parametrize(
    ("status", "code", "end"),
    [(404, "stream-not-found", "deleted"), (410, "offset-gone", "deleted"), (403, "forbidden", "forbidden")],
)
def test_a_stream_that_ends_between_two_connections_ends_as_during_one(status: int, code: str, end: str) -> None:
    script = Script(
        control("a", 1, "upToDate") + control("b", 1, "upToDate"),
        problem(status, code, "b"),
        data("a", [1], 2) + control("a", 2, "streamClosed"),
    )
    with script.client() as client:
        batches = list(client.follow({"a": "now", "b": "now"}))
    ends = [(batch.stream, batch.closed, getattr(batch, end)) for batch in batches[2:]]
    assert ends == [("b", False, True), ("a", False, False), ("a", True, False)]
    assert script.asked[2] == {"a": OFFSETS[1]}


@pytest.mark.parametrize(("code", "kind"), [("offset-lost", OffsetLostError), ("offset-trimmed", OffsetTrimmedError)])
def test_data_that_was_lost_or_trimmed_is_an_error_and_no_deletion(code: str, kind: type[OffsetGoneError]) -> None:
    script = Script(control("a", 1, "upToDate"), problem(410, code, "a"))
    with script.client() as client, pytest.raises(kind) as caught:
        list(client.follow({"a": "-1"}))
    assert caught.value.stream == "a"


def trimmed(stream: str) -> httpx.Response:
    response = problem(410, "offset-trimmed", stream)
    return httpx.Response(
        410, headers={**response.headers, "stream-first-offset": OFFSETS[7]}, content=response.content
    )


def test_data_that_was_trimmed_is_an_error_and_no_deletion() -> None:
    script = Script(control("a", 1, "upToDate"), trimmed("a"))
    with script.client() as client, pytest.raises(OffsetTrimmedError) as caught:
        list(client.follow({"a": "-1"}))
    assert (caught.value.stream, caught.value.first_offset) == ("a", OFFSETS[7])


@pytest.mark.parametrize("gone", [trimmed("a"), problem(410, "offset-gone", "a"), problem(410, "offset-lost", "a")])
def test_a_stream_whose_data_is_gone_begins_again_and_the_others_continue(gone: httpx.Response) -> None:
    script = Script(
        data("a", [1], 1) + control("a", 1, "upToDate") + control("b", 1, "upToDate"),
        gone,
        data("a", [7], 8) + control("a", 8, "streamClosed") + control("b", 1, "streamClosed"),
    )
    failures: list[HeadwaterError] = []
    with script.client() as client:
        follow = client.follow({"a": "-1", "b": "now"}, on_gone=failures.append)
        batches = [(batch.stream, batch.items, batch.restarted, batch.deleted) for batch in follow]
    assert batches[3:5] == [("a", [], True, False), ("a", [7], False, False)]
    assert script.asked[1:] == [{"a": OFFSETS[1], "b": OFFSETS[1]}, {"a": "-1", "b": OFFSETS[1]}]
    assert [isinstance(error, OffsetGoneError) for error in failures] == [True]


def test_an_error_in_an_event_names_the_first_offset_and_lets_its_stream_begin_again() -> None:
    document = b'{"type":"urn:headwater:offset-trimmed","status":410,"first_offset":"%b"}' % OFFSETS[7].encode()
    responses = [control("a", 0, problem=document), data("a", [7], 8) + control("a", 8, "streamClosed")]
    with Script(*responses).client() as client, pytest.raises(OffsetTrimmedError) as caught:
        list(client.follow({"a": OFFSETS[1]}))
    assert caught.value.first_offset == OFFSETS[7]
    with Script(*responses).client() as client:
        batches = list(client.follow({"a": OFFSETS[1]}, on_gone="restart"))
    assert [(batch.items, batch.restarted) for batch in batches] == [([], True), ([7], False), ([], False)]


def test_a_stream_that_is_gone_at_its_beginning_is_an_error() -> None:
    script = Script(trimmed("a"), trimmed("a"))
    with script.client() as client, pytest.raises(OffsetTrimmedError):
        list(client.follow({"a": "-1"}, on_gone="restart"))


def test_a_stream_that_fails_is_an_error_and_the_others_go_on_without_it() -> None:
    document = b'{"type":"urn:headwater:damaged-data","status":500,"detail":"the chunk"}'
    script = Script(
        data("a", [1], 1) + control("b", 0, problem=document) + data("a", [2], 2),
        data("a", [2], 2) + control("a", 2, "streamClosed"),
    )
    with script.client() as client:
        follow = client.follow({"a": "-1", "b": "-1"})
        items: list[Any] = []
        with pytest.raises(DamagedDataError, match="stream 'b': the chunk") as caught:
            collect(follow, lambda _, batch: items.extend(batch.items))
        follow.drop(caught.value.stream)
        collect(follow, lambda _, batch: items.extend(batch.items))
    assert items == [1, 2]


def test_a_server_that_never_answers_is_given_up_and_one_that_has_is_not() -> None:
    with Script(*[httpx.ConnectError("refused")] * 4).client() as client, pytest.raises(NetworkError):
        list(client.follow({"a": "-1"}))
    script = Script(
        data("a", [1], 1), *[httpx.ConnectError("refused")] * 50, data("a", [2], 2) + control("a", 2, "streamClosed")
    )
    with script.client() as client:
        assert collect(client.follow({"a": "-1"}), lambda *_: False) == {"a": [1, 2]}


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404),
        httpx.Response(405),
        httpx.Response(200, headers={"content-type": "text/html"}, content=b"<p>"),
    ],
)
def test_another_server_is_recognised(response: httpx.Response) -> None:
    with Script(*[response] * 5).client() as client, pytest.raises(ProtocolError):
        list(client.follow({"a": "-1"}))


@pytest.mark.parametrize(
    "event",
    [
        b"event: data\ndata:[]\n\n",
        b'event: data\ndata:{"stream":"x","nextOffset":"1","messages":[]}\n\n',
        b'event: data\ndata:{"stream":"a","nextOffset":"1","base64":"?"}\n\n',
        b'event: data\ndata:{"stream":"a","nextOffset":"1","messages":7}\n\n',
        b'event: control\ndata:{"stream":"a","nextOffset":"1","error":7}\n\n',
    ],
)
def test_events_that_are_broken_end_the_reader_after_some_attempts(event: bytes) -> None:
    with Script(*[event] * 20).client() as client, pytest.raises(ProtocolError):
        list(client.follow({"a": "-1"}))


def test_a_refused_token_ends_it() -> None:
    with Script(httpx.Response(401)).client(token="x") as client, pytest.raises(UnauthorizedError):
        list(client.follow({"a": "-1"}))


def test_a_position_within_a_response_skips_what_was_delivered() -> None:
    script = Script(data("a", [1], 1) + data("a", [2, 3], 2) + control("a", 2, "streamClosed"))
    with script.client() as client:
        items = collect(client.follow({"a": Position("-1", 2)}), lambda *_: False)
    assert items == {"a": [3]}
