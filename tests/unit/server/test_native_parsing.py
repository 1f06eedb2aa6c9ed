"""Requests from bytes, without a connection."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.joining import Joined
from headwater.limits import (
    HEAD_KNOWN_BYTES_MAX,
    HEADER_MEMORY_BYTES,
    HEADERS_MAX,
    HEADS_KNOWN_MAX,
    HEADS_PASSED,
    JOINED_PIECE_BYTES,
    PARSE_STEP_BYTES,
    REQUEST_MEMORY_BYTES,
    Limits,
)
from headwater.server.native.parsing import KnownHeads, RequestParser, RequestPhase
from headwater.server.native.pipeline import RequestQueue, Waiting

STREAM = (
    b"POST /a?b=c HTTP/1.1\r\nHost: t\r\nX-Twice: 1\r\nx-twice: 2\r\nContent-Length: 3\r\n\r\nabc"
    b"PUT http://other.example/a/b HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    b"\r\nGET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n\r\n"
    b"OPTIONS * HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
)


def parse(*pieces: bytes, limits: Limits | None = None) -> tuple[list[Waiting], RequestParser]:
    completed: list[Waiting] = []
    parser = RequestParser(limits or Limits(), completed.append)
    for piece in pieces:
        parser.feed(piece)
    return completed, parser


def test_requests_in_one_piece() -> None:
    completed, parser = parse(STREAM)
    assert [(request.method, request.path, request.query, request.body) for request, _ in completed] == [
        ("POST", "/a", "b=c", b"abc"),
        ("PUT", "/a/b", "", b"abcde"),
        ("GET", "/", "", b""),
        ("OPTIONS", "*", "", b""),
    ]
    assert [keep_alive for _, keep_alive in completed] == [True, True, True, False]
    assert completed[0][0].headers["x-twice"] == "1, 2"
    assert "upgrade" not in completed[2][0].headers
    assert parser.phase is RequestPhase.NOTHING


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_bytes_are_split_makes_no_difference(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    completed, parser = parse(*[STREAM[a:b] for a, b in itertools.pairwise(bounds)])
    for request, _ in completed + (whole := parse(STREAM)[0]):
        request.head_bytes = 0  # which is known only about
    assert completed == whole
    assert parser.error is None


@pytest.mark.parametrize(
    ("data", "phase"),
    [
        (b"", RequestPhase.NOTHING),
        (b"\r\n", RequestPhase.NOTHING),
        (b"G", RequestPhase.HEAD),
        (b"GET / HTTP/1.1\r\nhost: t\r\n", RequestPhase.HEAD),
        (b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n", RequestPhase.BODY),
        (b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\nx", RequestPhase.NOTHING),
        (b"NO\r\n\r\n", RequestPhase.FAILED),
    ],
)
def test_how_much_of_the_next_request_is_there(data: bytes, phase: RequestPhase) -> None:
    assert parse(data)[1].phase is phase


def error_of(*pieces: bytes) -> HeadwaterError:
    limits = Limits(url_bytes_max=50, header_bytes_max=200, body_bytes_max=100)
    completed, parser = parse(*pieces, limits=limits)
    assert completed == []
    assert parser.phase is RequestPhase.FAILED
    assert parser.error is not None
    parser.feed(STREAM)  # is ignored
    assert completed == []
    return parser.error


def test_limits() -> None:
    assert error_of(b"GET /" + b"a" * 60 + b" HTTP/1.1\r\nhost: t\r\n\r\n").status == 414
    assert error_of(b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 300 + b"\r\n\r\n").status == 431
    assert error_of(b"GET / HTTP/1.1\r\nhost: t\r\nx: ", b"a" * 300).status == 431
    assert error_of(b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 101\r\n\r\n").status == 413
    chunked = b"PUT / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    assert error_of(chunked, b"65\r\n" + b"a" * 101).status == 413
    assert error_of(chunked, b"1\r\na\r\n0\r\nx: " + b"a" * 300 + b"\r\n\r\n").status == 431
    assert error_of(b"CONNECT t:1 HTTP/1.1\r\nhost: t\r\n\r\n").status == 400
    assert error_of(b"GET / HTTP/1.1\r\n\r\n").status == 400


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["incomplete", "complete"])
def test_headers_are_bounded_in_number(end: bytes) -> None:
    def headers(count: int) -> bytes:
        return b"GET / HTTP/1.1\r\nhost: t\r\n" + b"".join(b"%x:\r\n" % number for number in range(count)) + end

    error = parse(headers(HEADERS_MAX + 1))[1].error
    assert error is not None
    assert error.status == 431
    assert parse(headers(HEADERS_MAX - 1))[1].error is None


def test_what_is_held() -> None:
    head = b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n"
    one, two = (REQUEST_MEMORY_BYTES + count * HEADER_MEMORY_BYTES for count in (1, 2))
    assert parse()[1].head_bytes == 0
    assert parse(head[:20])[1].head_bytes == REQUEST_MEMORY_BYTES + 20
    assert parse(head[:30])[1].head_bytes == one + len("hostt") + 30
    assert parse(head[:20], head[20:])[1].head_bytes == two + len("hosttcontent-length9")
    assert parse(head, b"abc")[1].body_bytes == 3
    assert parse(head + b"123456789" + head[:20])[1].head_bytes == REQUEST_MEMORY_BYTES + PARSE_STEP_BYTES  # at most
    completed, parser = parse(head, b"123456789")
    assert parser.head_bytes == parser.body_bytes == 0
    pipeline = RequestQueue(Limits())
    pipeline.append(completed[0])
    assert pipeline.held_bytes == two + len("hosttcontent-length9") + 9


def test_many_pipelined_requests_count_as_the_memory_that_they_take() -> None:
    pipeline = RequestQueue(Limits())
    request = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"
    RequestParser(Limits(), pipeline.append).feed(request * 100)
    assert len(pipeline) == 100
    assert pipeline.held_bytes > 100 * REQUEST_MEMORY_BYTES


def test_repeated_headers_count_as_headers() -> None:
    head = b"GET / HTTP/1.1\r\nhost: t\r\n"
    assert parse(head + b"x:\r\n" * (HEADERS_MAX - 1) + b"\r\n")[1].error is None
    for end in (b"", b"\r\n"):
        error = parse(head + b"x:\r\n" * (HEADERS_MAX + 1) + end)[1].error
        assert error is not None
        assert error.status == 431


CHUNKED = b"PUT / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"


def test_small_chunks_are_joined_as_they_arrive() -> None:
    _, parser = parse(CHUNKED, *[b"2\r\nab\r\n" * 500] * 40)
    assert parser.body_bytes == 40_000
    assert isinstance(parser._body, Joined)
    assert len(parser._body._pieces) <= 40_000 / JOINED_PIECE_BYTES
    assert parser._body.take() == b"ab" * 20_000


def test_the_rest_of_many_small_pieces_waits() -> None:
    data = b"2\r\nab\r\n" * 4_000
    completed: list[Waiting] = []
    parser = RequestParser(Limits(), completed.append)
    parser.feed(CHUNKED)
    assert not parser.crowded
    turns, rest = 0, memoryview(data)
    while rest:
        before, rest = len(rest), memoryview(parser.feed(rest))
        assert before - len(rest) <= PARSE_STEP_BYTES
        turns += 1
    assert turns == -(-len(data) // PARSE_STEP_BYTES)
    assert parser.crowded or len(data) % PARSE_STEP_BYTES
    parser.feed(b"0\r\n\r\n")
    assert completed[0][0].body == b"ab" * 4_000
    assert parser.feed(b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000) == b""


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"HTTP/1.0\r\nhost: t\r\ntransfer-encoding: chunked", 400),
        (b"HTTP/1.0\r\nhost: t\r\ntransfer-encoding: gzip, chunked", 400),
        (b"HTTP/1.1\r\nhost: t\r\ntransfer-encoding: gzip, chunked", 501),
        (b"HTTP/1.1\r\nhost: t\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked", 501),
        (b"HTTP/1.1\r\nhost: t\r\ntransfer-encoding: x-mine, chunked\r\nconnection: upgrade\r\nupgrade: h2c", 501),
    ],
)
def test_transfer_encodings_that_are_refused(line: bytes, status: int) -> None:
    completed, parser = parse(b"POST / " + line + b"\r\n\r\n4\r\nabcd\r\n0\r\n\r\n")
    assert completed == []
    assert parser.error is not None
    assert parser.error.status == status
    assert not parser.error.retryable


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        (b"1.1", b"close, Upgrade", False),
        (b"1.1", b"Upgrade, close", False),
        (b"1.1", b"upgrade\r\nConnection: close", False),
        (b"1.1", b"Upgrade", True),
        (b"1.0", b"Upgrade", False),
        (b"1.0", b"Upgrade, keep-alive", True),
    ],
)
def test_an_upgrade_that_is_declined_changes_nothing_else(version: bytes, connection: bytes, keep_alive: bool) -> None:
    head = b"GET / HTTP/%b\r\nHost: t\r\nConnection: %b\r\nUpgrade: h2c\r\n\r\n"
    completed, parser = parse(head % (version, connection))
    assert parser.error is None
    assert [(request.version, kept) for request, kept in completed] == [(version.decode(), keep_alive)]


@pytest.mark.parametrize(("error", "status"), [(MemoryError(), 503), (KeyError("a bug"), 500)])
def test_a_failure_of_the_server_is_not_the_fault_of_the_request(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("headwater.server.native.parsing.Request", fail)
    _, parser = parse(STREAM)
    assert parser.error is not None
    assert (parser.error.status, parser.error.retryable) == (status, True)


def test_an_expectation_is_met_once_and_not_after_the_body_has_begun() -> None:
    head = b"PUT / HTTP/1.%d\r\nhost: t\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n"
    _, parser = parse(head % 1)
    assert parser.take_expectation()
    assert not parser.take_expectation()
    assert not parse(head % 1, b"a")[1].take_expectation()
    assert not parse(head % 0)[1].take_expectation()


def test_a_pipeline_is_full_by_count_or_by_bytes() -> None:
    pipeline = RequestQueue(Limits(pipeline_requests_max=3, pipeline_bytes_max=2_500))
    parser = RequestParser(Limits(), pipeline.append)
    post = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc"
    full = []
    for _ in range(2):
        parser.feed(post)
        full.append(pipeline.full)
    pipeline.clear()
    parser.feed(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n" * 3)
    full.append(pipeline.full)
    pipeline.popleft()
    assert [*full, pipeline.full] == [False, True, True, False]


def _ignore(_: Waiting) -> None:
    """For parsers whose requests do not matter."""


def _post(path: str = "/a", more: str = "", body: bytes = b"abc") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: t\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def test_a_head_that_arrives_again_is_not_parsed_again() -> None:
    heads = KnownHeads()
    first: list[Waiting] = []
    parser, other = RequestParser(Limits(), first.append, heads), RequestParser(Limits(), _ignore, heads)
    assert parser.repeated(_post()) is None
    parser.feed(_post(body=b"abc"))
    for received in (_post(body=b"xyz"), memoryview(_post(body=b"xyz"))):  # also over another connection
        request = other.repeated(received)
        assert request is not None
        expected, keep_alive = first[0]
        assert keep_alive
        assert (request.method, request.path, request.query) == (expected.method, expected.path, expected.query)
        assert (request.headers, request.version) == (expected.headers, expected.version)
        assert request.body == b"xyz"
    assert first[0][0].body == b"abc"


@pytest.mark.parametrize(
    "received",
    [
        _post(body=b"abcd"),  # another length, so another head
        _post()[:-1],  # incomplete
        _post() + b"P",  # with a part of the next request
        _post() + _post(),
        b"\r\n" + _post(),
        _post().replace(b"host", b"Host"),
    ],
)
def test_only_a_known_head_with_exactly_its_body_is_recognized(received: bytes) -> None:
    heads = KnownHeads()
    RequestParser(Limits(), _ignore, heads).feed(_post())
    assert len(heads) == 1
    completed: list[Waiting] = []
    parser = RequestParser(Limits(), completed.append, heads)
    assert parser.repeated(received) is None
    parser.feed(received)
    assert [request.body for request, _ in completed] == [request.body for request, _ in parse(received)[0]]


@pytest.mark.parametrize(
    "request_bytes",
    [
        _post(more="expect: 100-continue\r\n"),
        _post(more="producer-seq: 3\r\n"),
        _post(more="connection: close\r\n"),
        _post(more=f"x: {'y' * HEAD_KNOWN_BYTES_MAX}\r\n"),
        b"GET /a HTTP/1.1\r\nhost: t\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST /a HTTP/1.0\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_which_heads_are_not_kept(request_bytes: bytes) -> None:
    heads = KnownHeads()
    RequestParser(Limits(), _ignore, heads).feed(request_bytes)
    assert not heads


def test_no_request_is_recognized_in_the_middle_of_another_or_after_the_last() -> None:
    heads = KnownHeads()
    RequestParser(Limits(), _ignore, heads).feed(_post())
    unfinished = b"POST /b HTTP/1.1\r\nhost: t\r\ncontent-length: 99\r\n\r\n"
    for before in (unfinished, b"P", _post(more="connection: close\r\n")):
        parser = RequestParser(Limits(), _ignore, heads)
        parser.feed(before)
        assert parser.repeated(_post()) is None
    parser = RequestParser(Limits(), _ignore, heads)
    parser.end()
    assert parser.repeated(_post()) is None


def test_known_heads_are_bounded() -> None:
    heads = KnownHeads()
    parser = RequestParser(Limits(), _ignore, heads)
    for number in range(HEADS_KNOWN_MAX + 10):
        parser.feed(_post(f"/{number}"))
    oldest, *_, newest = heads
    assert (len(heads), oldest, newest) == (HEADS_KNOWN_MAX, _head("/10"), _head(f"/{HEADS_KNOWN_MAX + 9}"))
    for number in range(HEADS_PASSED):
        assert parser.repeated(_post(f"/other/{number}")) is not None  # its headers are known
    assert next(iter(heads)) == oldest
    assert parser.repeated(_post("/0")) is not None  # the first that replaces another one
    assert (len(heads), [*heads][-1], oldest in heads) == (HEADS_KNOWN_MAX, _head("/0"), False)
    for number in range(1_000, 1_000 + HEADS_KNOWN_MAX):
        parser.feed(_post(body=bytes(number)))
    assert len(heads) == HEADS_KNOWN_MAX
    assert parser.repeated(_post("/0")) is None


def _head(path: str) -> bytes:
    return _post(path).removesuffix(b"abc")


@pytest.mark.parametrize("path", ["/", "/b", "//b", "/a/b%2Fc%zz", "/a.b_c~d!$&'()*+,;=:@-", f"/{'b' * 255}"])
def test_known_headers_are_recognized_at_other_paths(path: str) -> None:
    heads = KnownHeads()
    parser = RequestParser(Limits(url_bytes_max=256), _ignore, heads)
    parser.feed(_post("/a?x=1"))  # its query is not of the others
    assert parser.repeated(_post(path)) is None
    parser.feed(_post())
    request = parser.repeated(_post(path, body=b"xyz"))
    assert [request] == [expected for expected, _ in parse(_post(path, body=b"xyz"))[0]]
    assert parser.repeated(_post(path, body=b"xyz")) == request


@pytest.mark.parametrize(
    "received",
    [
        _post("/b?x=1"),
        _post("/b#x"),
        _post("/b\x7f"),
        _post("/bä"),
        _post("/b c"),
        _post("http://t/b"),
        _post("*"),
        _post(f"/{'b' * 256}"),  # too long
        _post("/b").replace(b"1.1", b"1.0"),
        _post("/b").replace(b"POST", b"PUT"),
        _post("/b").replace(b"POST", b"post"),
        _post("/b").replace(b"POST ", b"POST  "),
        _post("/b").replace(b" HTTP", b"  HTTP"),
        _post("/b").replace(b"1.1\r\n", b"1.1\n"),
        _post("/b", more="x: y\r\n"),
        _post("/b")[:-1],
        _post("/b") + b"P",
        _post("/b").partition(b"\r\n\r\n")[0],
        _post("/b").partition(b"host")[0],
        b"\r\n" + _post("/b"),
    ],
)
def test_nothing_but_the_path_may_differ_from_a_known_head(received: bytes) -> None:
    heads = KnownHeads()
    parser = RequestParser(Limits(url_bytes_max=256), _ignore, heads)
    parser.feed(_post())
    assert parser.repeated(received) is None
