"""Requests from bytes, without a connection."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.limits import HEADERS_MAX, PARSE_STEP_BYTES, Limits
from headwater.server.native.parsing import Phase, RequestParser
from headwater.server.native.pipeline import Pipeline, Waiting

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
    assert parser.phase is Phase.NOTHING


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
        (b"", Phase.NOTHING),
        (b"\r\n", Phase.NOTHING),
        (b"G", Phase.HEAD),
        (b"GET / HTTP/1.1\r\nhost: t\r\n", Phase.HEAD),
        (b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n", Phase.BODY),
        (b"PUT / HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\nx", Phase.NOTHING),
        (b"NO\r\n\r\n", Phase.FAILED),
    ],
)
def test_how_much_of_the_next_request_is_there(data: bytes, phase: Phase) -> None:
    assert parse(data)[1].phase is phase


def error_of(*pieces: bytes) -> HeadwaterError:
    limits = Limits(url_bytes_max=50, header_bytes_max=200, body_bytes_max=100)
    completed, parser = parse(*pieces, limits=limits)
    assert completed == []
    assert parser.phase is Phase.FAILED
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
    assert parse()[1].held_bytes == 0
    assert parse(head[:20])[1].held_bytes == 20
    assert parse(head[:20], head[20:])[1].held_bytes == len(head)
    assert parse(head, b"abc")[1].held_bytes == len(head) + 3
    assert parse(head + b"123456789" + head[:20])[1].held_bytes == PARSE_STEP_BYTES  # at most
    completed, parser = parse(head, b"123456789")
    assert completed[0][0].head_bytes == len(head)
    assert parser.held_bytes == 0


def test_an_expectation_is_met_once_and_not_after_the_body_has_begun() -> None:
    head = b"PUT / HTTP/1.%d\r\nhost: t\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n"
    _, parser = parse(head % 1)
    assert parser.take_expectation()
    assert not parser.take_expectation()
    assert not parse(head % 1, b"a")[1].take_expectation()
    assert not parse(head % 0)[1].take_expectation()


def test_a_pipeline_is_full_by_count_or_by_bytes() -> None:
    pipeline = Pipeline(Limits(pipeline_requests_max=3, pipeline_bytes_max=70))
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
