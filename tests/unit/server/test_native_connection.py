"""One connection of the native edge: what it holds, what it refuses before a body, and slow bodies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UnauthorizedError
from headwater.limits import PARSE_PIECES_MAX, RECEIVE_BYTES, Limits
from headwater.server.http import Response
from headwater.server.native.states import ConnectionState
from headwater.server.problems import problem
from tests.unit.server.rig import Rig

CHUNKED = b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"


def chunks(pieces: Iterable[bytes]) -> bytes:
    return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"


def reads(rig: Rig) -> bool:
    return rig.transport.reading


def send_all(rig: Rig, data: bytes) -> int:
    """Send as much as the connection reads, and give it its turns. Returns the number of turns."""
    turns = 0
    for start in range(0, len(data), RECEIVE_BYTES):
        assert reads(rig)
        rig.send(data[start : start + RECEIVE_BYTES])
        turns += rig.run_turns()
    return turns


def test_a_client_that_sends_many_small_chunks_waits_for_its_turns() -> None:
    rig = Rig()
    body = b"ab" * 20_000
    rig.send(CHUNKED)
    data = chunks([b"ab"] * 20_000)
    rig.send(data[:RECEIVE_BYTES])
    assert not reads(rig)
    assert rig.connection._parser.body_bytes < 5_000
    assert rig.run_turns() > 10
    assert reads(rig)
    send_all(rig, data[RECEIVE_BYTES:])
    assert rig.requests[0].body == body


def test_a_small_read_of_many_chunks_waits_for_a_turn_too() -> None:
    rig = Rig()
    rig.send(CHUNKED)
    rig.send(b"1\r\na\r\n" * (PARSE_PIECES_MAX + 1))
    assert not reads(rig)
    assert rig.run_turns() == 1
    assert reads(rig)


def test_waiting_for_its_turn_a_client_is_not_slow() -> None:
    rig = Rig(Limits(body_stall_s=10))
    rig.send(CHUNKED)
    rig.send(b"1\r\na\r\n" * 1_000)
    rig.pass_time(100)
    assert not rig.transport.unread
    rig.run_turns()
    rig.pass_time(1)
    assert b"408" in rig.transport.unread


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=600), st.integers(1, 3))
def test_the_size_of_chunks_makes_no_difference(pieces: list[bytes], requests: int) -> None:
    rig = Rig()
    send_all(rig, (CHUNKED + chunks(pieces)) * requests)
    for _ in range(requests):
        rig.respond(Response(204))
        rig.run_turns()
    assert [request.body for request in rig.requests] == [b"".join(pieces)] * requests
    assert rig.shared.requests.held_bytes == rig.shared.ahead.held_bytes == 0


def test_pipelined_requests_are_parsed_only_as_far_as_they_fit() -> None:
    rig = Rig(Limits(pipeline_requests_max=4))
    post = b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n"
    rig.send(post * 1_000)
    rig.run_turns()
    assert not reads(rig)
    assert len(rig.connection._pipeline) < 200
    for _ in range(1_000):
        rig.respond(Response(204))
        rig.run_turns()
    assert len(rig.requests) == 1_000
    assert reads(rig)
    assert rig.connection._rest == b""


def test_a_lost_connection_gives_up_its_turn() -> None:
    rig = Rig()
    rig.send(CHUNKED)
    rig.send(b"1\r\na\r\n" * 1_000)
    rig.lose()
    assert rig.run_turns() == 1
    assert rig.connection._rest == b""
    assert rig.shared.requests.held_bytes == rig.shared.ahead.held_bytes == 0


HEAD = b"POST /a HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"


def refusal() -> Response:
    return problem(UnauthorizedError("no token"), close=True)


def test_a_request_without_access_is_refused_before_its_body() -> None:
    rig = Rig()
    rig.refuse_heads_with = refusal()
    rig.send(HEAD)
    answer = bytes(rig.transport.unread)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer
    assert b"100 Continue" not in answer
    assert rig.requests == []
    assert rig.connection._state is ConnectionState.LINGERING
    rig.send(b"x" * 9)  # is discarded, so that the client can read the response
    assert rig.requests == []
    assert rig.shared.requests.held_bytes == 0


def test_a_body_is_asked_for_when_the_head_is_accepted() -> None:
    rig = Rig()
    rig.send(HEAD)
    assert rig.transport.unread == b"HTTP/1.1 100 Continue\r\n\r\n"
    rig.send(b"123456789")
    assert rig.requests[0].body == b"123456789"


def test_a_pipelined_head_is_refused_after_the_responses_before_it() -> None:
    rig = Rig()
    rig.refuse_heads_with = refusal()
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc" + HEAD + b"x")
    assert rig.transport.unread == b""
    assert rig.connection._parser.body_bytes == 0
    rig.respond(Response(204))
    answer = bytes(rig.transport.unread)
    assert answer.index(b"204") < answer.index(b"401")


def test_heads_of_strangers_leave_room_for_bodies() -> None:
    rig = Rig(Limits(request_bytes_in_flight_max=100_000))
    others = [rig.another() for _ in range(30)]
    for other in others:
        other.send(b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"x" * 4_000)
    assert rig.shared.ahead.held_bytes <= 25_000 < rig.shared.requests.bytes_max
    assert any(b" 503 " in other.transport.unread for other in others)
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 60000\r\n\r\n" + b"x" * 30_000)
    rig.send(b"x" * 30_000)
    assert len(rig.requests[0].body) == 60_000


def test_the_rate_of_a_body_is_that_of_the_last_seconds() -> None:
    """A client that sent fast first had hours before it had to send more."""
    rig = Rig(Limits(body_stall_s=10, body_bytes_per_s_min=100))
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000\r\n\r\n")
    rig.pass_time(1)
    rig.send(b"x" * 500_000)
    for _ in range(9):
        rig.pass_time(1)
        rig.send(b"x")
    assert not rig.transport.unread
    rig.pass_time(2)
    assert b"408" in rig.transport.unread


@pytest.mark.parametrize("pause_s", [1, 5, 9])
def test_a_body_at_the_minimum_rate_is_accepted(pause_s: int) -> None:
    rig = Rig(Limits(body_stall_s=10, body_bytes_per_s_min=100))
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000\r\n\r\n")
    for _ in range(100):
        rig.pass_time(pause_s)
        rig.send(b"x" * 100 * pause_s)
    assert not rig.transport.unread


# A server that stops

GET = b"GET /a HTTP/1.1\r\nhost: t\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc"


def test_a_stopping_server_answers_the_next_request_of_an_idle_connection() -> None:
    rig = Rig()
    rig.send(GET)
    rig.transport.drain()
    rig.drain()
    assert not rig.transport.eof
    rig.send(GET)
    answer = bytes(rig.transport.unread)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer
    assert b"retry-after: 1" in answer
    assert b"urn:headwater:stopping" in answer
    assert len(rig.requests) == 1
    assert rig.connection._state is ConnectionState.LINGERING


def test_a_stopping_server_answers_a_new_connection() -> None:
    rig = Rig()
    rig.drain()
    new = rig.another()
    assert not new.transport.unread
    new.send(GET)
    assert new.transport.unread.startswith(b"HTTP/1.1 503 ")


def test_a_stopping_server_refuses_a_new_body_at_its_head() -> None:
    rig = Rig()
    rig.drain()
    rig.send(HEAD)
    assert rig.transport.unread.startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("arrived", [1, 20, len(POST) - 1])
def test_a_stopping_server_completes_a_request_that_has_begun_to_arrive(arrived: int) -> None:
    rig = Rig()
    rig.send(POST[:arrived])
    rig.drain()
    rig.close_idle()
    rig.send(POST[arrived:])
    assert [request.body for request in rig.requests] == [b"abc"]
    rig.respond(Response(204))
    assert rig.transport.unread.startswith(b"HTTP/1.1 204 ")
    assert b"connection: close" in rig.transport.unread


def test_a_stopping_server_completes_pipelined_requests() -> None:
    rig = Rig()
    rig.send(POST * 3 + POST[:30])
    rig.drain()
    rig.send(POST[30:] + POST)
    for _ in range(4):
        rig.respond(Response(204))
    assert len(rig.requests) == 4
    statuses = [int(part[:3]) for part in rig.transport.unread.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [204, 204, 204, 204, 503]


def test_the_response_in_progress_does_not_close_the_connection_before_the_pause() -> None:
    rig = Rig()
    rig.send(POST)
    rig.drain()
    rig.respond(Response(204))
    assert b"connection: close" not in rig.transport.unread
    rig.transport.drain()
    rig.send(GET)
    assert rig.transport.unread.startswith(b"HTTP/1.1 503 ")


def test_after_the_pause_idle_connections_are_closed_and_others_after_their_response() -> None:
    rig = Rig()
    busy = rig.another()
    busy.send(POST)
    rig.drain()
    rig.close_idle()
    assert rig.lost
    assert not busy.lost
    rig.respond(Response(204))
    assert b"connection: close" in busy.transport.unread


def test_a_request_that_never_arrives_is_refused_at_the_end() -> None:
    rig = Rig()
    rig.send(POST[:20])
    rig.drain()
    rig.close_idle()
    rig.give_up()
    assert rig.transport.unread.startswith(b"HTTP/1.1 503 ")
    assert rig.connection.has_given_up


def test_a_live_read_ends_when_the_server_stops() -> None:
    rig = Rig()
    rig.send(POST)
    rig.respond_with_feed()
    rig.drain()
    assert rig.transport.unread.endswith(b"0\r\n\r\n")
    assert not rig.lost
