"""What goes with requests, where they may go, and how much an answer may hold."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import brotli
import httpx
import pytest

from headwater import limits
from headwater.client import Client, Retry
from headwater.client.session import Session, Timeouts, with_query
from headwater.errors import (
    ConfigurationError,
    ConflictError,
    ContentTypeError,
    HeadwaterError,
    ProtocolError,
    RedirectError,
    SequenceGapError,
    SequenceRegressionError,
    StreamClosedError,
)
from tests.servers import Server
from tests.shells import client_of

QUICK = Retry(attempts=4, first_s=0.0001, most_s=0.001)
OFFSET = {"stream-next-offset": "1"}
UP_TO_DATE = {**OFFSET, "stream-up-to-date": "true", "content-type": "application/json"}


class Elsewhere:
    """A server that notes what it is asked and answers what it is told to."""

    def __init__(self, shell: str) -> None:
        self.asked: list[httpx.Request] = []
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(200, headers=UP_TO_DATE)
        transport = httpx.MockTransport(self._handle)
        kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
        self.http = kind(transport=transport)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answer(request)


@pytest.fixture
def there(shell: str) -> Elsewhere:
    return Elsewhere(shell)


@pytest.fixture
def make(shell: str, there: Elsewhere) -> Iterator[Callable[..., Client]]:
    with contextlib.ExitStack() as stack:

        def made(url: str = "http://server", **options: Any) -> Client:
            return stack.enter_context(client_of(shell, url, http=there.http, retry=QUICK, **options))

        yield made


# Paths


@pytest.mark.parametrize("path", ["users/../admin", "..", "a/.", "./a", "a/../../b", "a//b", "a\\..\\b", "a/\x00"])
def test_a_path_that_would_be_resolved_is_refused(path: str, make: Callable[..., Client]) -> None:
    client = make("http://server/v1/stream/tenant")
    for handle in (client.stream, client.table):
        with pytest.raises((ValueError, HeadwaterError)):
            handle(path)


@pytest.mark.parametrize("path", ["http://server/v1/stream/t/../u", "http://server/v1/stream/t/%2e%2E/u"])
def test_a_url_that_would_be_resolved_is_refused(path: str, make: Callable[..., Client]) -> None:
    for handle in (make().stream, make().table):
        with pytest.raises(ValueError, match="names another"):
            handle(path)


def test_paths_are_encoded(make: Callable[..., Client], there: Elsewhere) -> None:
    client = make("http://server/v1/stream/tenant")
    for path in ("a?b", "a#b", "a%2e%2e", "%2e%2e", "a b", "\u00e9", "...", "a..b"):
        client.stream(path).head()
    root = "/v1/stream/tenant/"
    expected = ["a%3Fb", "a%23b", "a%252e%252e", "%252e%252e", "a%20b", "%C3%A9", "...", "a..b"]
    assert [request.url.raw_path.decode() for request in there.asked] == [
        f"{root}{path}?offset=now" for path in expected
    ]


def test_a_client_of_one_tenant_stays_there(shell: str, server: Server) -> None:
    tenants = f"http://{server.host}:{server.port}/v1/stream/{uuid.uuid4().hex}"
    with client_of(shell, f"{tenants}/other") as other, client_of(shell, f"{tenants}/own") as own:
        other.stream("secret").create()
        with pytest.raises(HeadwaterError):
            own.stream("../other/secret").head()


# Headers and parameters


def test_headers_and_parameters_go_with_every_request(make: Callable[..., Client], there: Elsewhere) -> None:
    counter = iter(range(100))
    client = make(
        headers={"X-Tenant": "t", "X-Count": lambda: str(next(counter))}, params={"zone": "eu", "key": lambda: "k&1"}
    )
    stream = client.stream("s", headers={"X-Own": lambda: "o", "x-tenant": "u"}, params={"alpha": "1"})
    answers = iter([{**UP_TO_DATE}, {**UP_TO_DATE, "stream-up-to-date": "false"}, {**UP_TO_DATE}])
    there.answer = lambda _: httpx.Response(200, headers=next(answers), content=b"[]")
    stream.head()
    stream.read().all()
    assert [request.headers["x-count"] for request in there.asked] == ["0", "1", "2"]
    assert {request.headers["x-own"] for request in there.asked} == {"o"}
    assert {request.headers["x-tenant"] for request in there.asked} == {"u"}
    assert [request.url.query for request in there.asked] == [
        b"alpha=1&key=k%261&offset=now&zone=eu",
        b"alpha=1&key=k%261&offset=-1&zone=eu",
        b"alpha=1&key=k%261&offset=1&zone=eu",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token": ""}, "the token is empty"),
        ({"token": lambda: " "}, "the token is empty"),
        ({"token": "s3cret "}, "authorization must not begin or end with a space: the token"),
        ({"headers": {"Authorization": "Bearer "}}, "the token is empty"),
        ({"headers": {"x-a": " b"}}, "x-a must not begin or end with a space: ' b'"),
        ({"headers": {"x-a": "b\nc"}}, "x-a must be printable ASCII"),
        ({"headers": {"x a": "b"}}, "not the name of a header: 'x a'"),
    ],
)
def test_headers_that_http_cannot_carry_are_refused_before_a_request(
    options: dict[str, Any], says: str, make: Callable[..., Client], there: Elsewhere
) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        make(**options).stream("prices").create()
    assert "s3cret" not in str(refusal.value)
    assert there.asked == []


def test_coroutine_functions_are_awaited() -> None:
    there = Elsewhere("async")

    async def value() -> str:
        return "v"

    with client_of("async", "http://server", http=there.http, headers={"x": value}, params={"p": value}) as client:
        client.stream("s").head()
    assert (there.asked[0].headers["x"], there.asked[0].url.query) == ("v", b"offset=now&p=v")


def test_what_is_the_clients_own_goes_to_its_origin_alone(make: Callable[..., Client], there: Elsewhere) -> None:
    client = make("http://server", token="secret", headers={"x-key": "secret"}, params={"sig": "secret"})
    for url in ("http://other/s", "https://server/s", "http://server:81/s", "http://server.other/s"):
        client.stream(url).head()
    for request in there.asked:
        assert "secret" not in f"{request.url} {request.headers}"
    client.stream("http://SERVER:80/s").head()
    assert there.asked[-1].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nothing_of_it_goes_along_a_redirect(status: int, make: Callable[..., Client], there: Elsewhere) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "server" and request.url.path == "/v1/stream/s":
            return httpx.Response(status, headers={"location": "http://other/s?offset=-1"})
        if request.url.host == "other":
            return httpx.Response(status, headers={"location": "http://server/moved?offset=-1&sig=secret"})
        return httpx.Response(200, headers=UP_TO_DATE, content=b"[1]")

    there.answer = answer
    client = make("http://server", token="secret", headers={"x-key": "secret"}, params={"sig": "secret"})
    assert client.stream("s").read().all() == [1]
    first, second, third = there.asked
    assert second.url.host == "other"
    assert "secret" not in f"{second.url} {second.headers}"
    assert "secret" in f"{first.headers}"
    assert "secret" in f"{third.headers}"
    assert third.url.query == b"offset=-1&sig=secret"


def test_redirects_without_end(make: Callable[..., Client], there: Elsewhere) -> None:
    there.answer = lambda request: httpx.Response(302, headers={"location": str(request.url)})
    with pytest.raises(RedirectError):
        make().stream("s").head()
    assert len(there.asked) == limits.REDIRECTS_MAX + 1


def test_what_has_a_body_is_not_redirected(make: Callable[..., Client], there: Elsewhere) -> None:
    there.answer = lambda _: httpx.Response(307, headers={"location": "http://other/s"})
    with pytest.raises(HeadwaterError):
        make().stream("s", content_type="application/json").append(1)
    assert len(there.asked) == 1


def test_query_parameters_are_in_lexicographic_order() -> None:
    url = with_query("http://h/s?z=1&b=2", offset="x", cursor="y", live=None)
    assert url == "http://h/s?b=2&cursor=y&offset=x&z=1"


# Conflicts of servers that do not say which


@pytest.mark.parametrize(
    ("call", "headers", "kind"),
    [
        (lambda stream: stream.create(), {}, ConfigurationError),
        (lambda stream: stream.append(1), {}, ContentTypeError),
        (lambda stream: stream.append(1, seq="2"), {}, SequenceRegressionError),
        (lambda stream: stream.append(1), {"stream-closed": "true"}, StreamClosedError),
        (lambda stream: stream.append(1), {"producer-expected-seq": "4"}, SequenceGapError),
        (lambda stream: stream.head(), {}, ConflictError),
    ],
)
def test_conflicts_are_told_apart(
    call: Any, headers: dict[str, str], kind: type, make: Callable[..., Client], there: Elsewhere
) -> None:
    there.answer = lambda _: httpx.Response(409, headers=headers, text="Conflict")
    with pytest.raises(ConflictError) as raised:
        call(make().stream("s", content_type="application/json"))
    assert type(raised.value) is kind


# Answers that do not fit


def test_malformed_control_events_are_an_error_in_the_end(make: Callable[..., Client], there: Elsewhere) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if b"live=sse" not in request.url.query:
            return httpx.Response(200, headers=UP_TO_DATE, content=b"[]")
        good = 'event: control\ndata: {"streamNextOffset":"1","upToDate":true}\n\n'
        bad = "event: control\ndata: {no json}\n\n"
        frames = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=frames, text=good + bad)

    there.answer = answer
    with pytest.raises(ProtocolError, match="control event"):
        make().stream("s").read(live="sse").all()
    assert len(there.asked) < 30


def _streamed(pieces: Iterator[bytes], **headers: str) -> httpx.Response:
    class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return pieces

        async def __aiter__(self) -> Any:
            for piece in pieces:
                yield piece

    return httpx.Response(200, headers=headers, stream=Stream())


def test_a_bomb_is_read_in_bounded_pieces(make: Callable[..., Client], there: Elsewhere) -> None:
    bomb = brotli.compress(b"\0" * 100_000_000, quality=1)
    headers = {**UP_TO_DATE, "content-type": "application/octet-stream", "content-encoding": "br"}
    there.answer = lambda _: _streamed(iter([bomb]), **headers)
    sizes = [len(data) for data in make().stream("s").read(type=bytes)]
    assert sum(sizes) == 100_000_000
    assert max(sizes) <= limits.READ_PIECE_BYTES + 2 * limits.INFLATE_PIECE_BYTES


def test_a_list_that_is_a_bomb_is_refused(make: Callable[..., Client], there: Elsewhere) -> None:
    bomb = brotli.compress(b" " * (limits.ANSWER_BYTES_MAX + 1), quality=5)
    there.answer = lambda _: _streamed(iter([bomb]), **{"content-encoding": "br"})
    with pytest.raises(ProtocolError, match="longer than"):
        list(make().list())


def test_an_error_without_end_is_cut(make: Callable[..., Client], there: Elsewhere) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 65_536

    def answer(_: httpx.Request) -> httpx.Response:
        response = _streamed(pieces())
        response.status_code = 400
        return response

    there.answer = answer
    for call in (lambda: make().stream("s").head(), lambda: make().stream("s").read().all()):
        with pytest.raises(HeadwaterError):
            call()
    assert sent < 20


def test_a_message_without_end_is_refused(
    make: Callable[..., Client], there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGE_BYTES_MAX", 3_000_000)

    def pieces() -> Iterator[bytes]:
        yield b'["'
        while True:
            yield b"x" * 65_536

    there.answer = lambda _: _streamed(pieces(), **UP_TO_DATE)
    with pytest.raises(ProtocolError, match="a message is longer than 3000000 bytes"):
        make().stream("s").read().all()


def test_retry_after_is_capped(make: Callable[..., Client], there: Elsewhere) -> None:
    for wait in ("9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT", "100000"):
        there.answer = lambda _, wait=wait: httpx.Response(400, headers={"retry-after": wait})  # type: ignore[misc]
        with pytest.raises(HeadwaterError) as raised:
            make().stream("s").head()
        assert raised.value.retry_after_s == limits.RETRY_AFTER_MAX_S


@pytest.mark.parametrize(
    "nonsense",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"first_s": 0.0},
        {"first_s": -1.0},
        {"most_s": 0.0},
        {"first_s": float("nan")},
        {"most_s": float("inf")},
    ],
)
def test_retry_refuses_nonsense(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Retry(**nonsense)


def test_a_password_in_the_url_is_sent_and_never_shown(make: Callable[..., Client], there: Elsewhere) -> None:
    client = make("http://ann:s%20cret@server/v1/stream")
    there.answer = lambda _: httpx.Response(404)
    with pytest.raises(HeadwaterError) as raised:
        client.stream("s").head()
    assert there.asked[0].headers["authorization"] == "Basic YW5uOnMgY3JldA=="
    assert "cret" not in f"{raised.value} {raised.value.url} {there.asked[0].url}"
    for url in ("http://ann:secret@host:bad", "ftp://ann:secret@host", "http://ann:secret@host?q"):
        with pytest.raises(ValueError, match=r"URL|[Pp]ort") as refused:
            Session(url, None, None, None, QUICK, Timeouts(), None)
        assert "secret" not in str(refused.value)
    for handle in (client.stream, client.table):
        with pytest.raises(ValueError, match=r"SURL|credentials") as refused:
            handle("http://ann:secret@other/s")
        assert "secret" not in str(refused.value)


# Tails through caches


def test_a_tail_is_asked_for_at_a_url_where_get_has_it_too(make: Callable[..., Client], there: Elsewhere) -> None:
    make().stream("s").head()
    [request] = there.asked
    assert (request.method, request.url.query) == ("HEAD", b"offset=now")


@pytest.mark.parametrize(("age", "methods"), [("0", ["HEAD"]), ("7", ["HEAD", "GET"])])
def test_a_head_that_a_cache_answered_is_not_taken_for_the_tail(
    make: Callable[..., Client], there: Elsewhere, age: str, methods: list[str]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        old = request.method == "HEAD"
        return httpx.Response(200, headers={"stream-next-offset": "4" if old else "9", "age": age if old else "0"})

    there.answer = answer
    assert make().stream("s").head().tail_offset == ("9" if len(methods) == 2 else "4")
    assert [request.method for request in there.asked] == methods
    assert all(request.headers.get("cache-control") == "no-cache" for request in there.asked[1:])


def test_a_cache_that_ignores_no_store_is_an_error(make: Callable[..., Client], there: Elsewhere) -> None:
    there.answer = lambda _: httpx.Response(200, headers={**UP_TO_DATE, "age": "3"})
    with pytest.raises(ProtocolError, match="3 s old"):
        make().stream("s").head()
