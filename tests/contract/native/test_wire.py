"""The native edge on the wire: invalid, too large, pipelined, slow and interrupted requests."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import uuid
from contextlib import AbstractContextManager

import pytest
from bench.servers import Server, headwater

from tests.contract.native.wire import Wire
from tests.metrics import LONG_POLL, metric_of, wait_for_readers_of
from tests.unit.server.rig import Rig
from tests.waiting import wait_until

GET = b"GET /v1/stream/none HTTP/1.1\r\nhost: localhost\r\n\r\n"


def fresh() -> str:
    return f"/v1/stream/native/{uuid.uuid4().hex}"


def healthy(server: Server) -> None:
    with Wire(server) as wire:
        assert wire.ask("GET", "/v1/stream/none").status == 404


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost t\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on the plain port
    ],
)
def test_invalid_http_gets_a_problem_and_the_connection_closes(server: Server, garbage: bytes) -> None:
    with Wire(server) as wire:
        wire.send(garbage)
        answer = wire.answer()
        assert answer.status == 400
        assert answer.problem["type"] == "urn:headwater:bad-request"
        assert wire.at_end()
    healthy(server)


def test_oversized_heads(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(b"GET /v1/stream/" + b"a" * 9000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.answer().problem["type"] == "urn:headwater:url-too-long"
    for head in (b"x: " + b"a" * 40_000, b"\r\n".join(b"x%d: %b" % (n, b"a" * 500) for n in range(100))):
        with Wire(server) as wire:
            wire.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
            assert wire.answer().status == 431
    with Wire(server) as wire:  # a header that never ends
        wire.send(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ")
        for _ in range(9):
            wire.send(b"a" * 4096)
        assert wire.answer().status == 431
    healthy(server)


def test_a_body_over_the_limit_is_refused_and_nothing_changes(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        assert wire.ask("PUT", path).status == 201
        before = wire.ask("HEAD", path).headers["stream-next-offset"]
    with Wire(server) as wire:
        wire.send(b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2000000\r\n\r\n" % path.encode())
        assert wire.answer().problem["type"] == "urn:headwater:body-too-large"
    with Wire(server) as wire:  # a client that sends it all the same still sees why
        try:
            wire.send(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2000000\r\n\r\n" % path.encode()
                + b"x" * 2_000_000
            )
        except ConnectionError:
            pytest.fail("the connection was reset before the response")
        assert wire.answer().status == 413
    with Wire(server) as wire:
        wire.send(b"POST %b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode())
        for _ in range(20):
            wire.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert wire.answer().status == 413
    with Wire(server) as wire:
        assert wire.ask("HEAD", path).headers["stream-next-offset"] == before
        body = b"x" * (1 << 20)
        assert wire.ask("POST", path, body, content_type="application/octet-stream").status == 204


@pytest.mark.parametrize(
    "path",
    ["a/../b", "..", "a%2Fb", "a%00b", "x" * 300, "a//b", "%ff", "%2e%2e/etc", "a%0d%0ab", "%5F%5Fds/streams", ""],
)
def test_paths_that_are_refused(server: Server, path: str) -> None:
    with Wire(server) as wire:
        for method in ("PUT", "GET", "POST", "DELETE"):
            answer = wire.ask(method, f"/v1/stream/{path}")
            assert answer.status == 400
            assert answer.problem["type"] == "urn:headwater:invalid-path"
        assert wire.ask("GET", "/v1/stream/none").status == 404  # the same connection goes on


def test_routes_and_methods(server: Server) -> None:
    with Wire(server) as wire:
        assert wire.ask("GET", "/none").problem["type"] == "urn:headwater:unknown-route"
        assert wire.ask("GET", "/v1/stream/__ds/nothing").status == 404
        answer = wire.ask("PROPFIND", "/v1/stream/a")
        assert answer.status == 405
        assert answer.headers["allow"] == "PUT, POST, GET, HEAD, PATCH, DELETE, OPTIONS"
        assert wire.ask("POST", "/v1/stream/__ds/streams").status == 405
        options = wire.ask("OPTIONS", "/v1/stream/a")
        assert (options.status, options.headers["allow"]) == (204, "PUT, POST, GET, HEAD, PATCH, DELETE, OPTIONS")


def test_every_response_carries_the_security_headers(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        for method in ("PUT", "GET", "HEAD", "POST", "DELETE", "DELETE", "PATCH"):
            headers = wire.ask(method, path).headers
            assert headers["x-content-type-options"] == "nosniff"
            if method in ("GET", "HEAD"):
                assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["date"].endswith("GMT")


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        assert wire.ask("PUT", path, content_type="text/plain").status == 201
        one = (
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\n"
            % path.encode()
        )
        wire.send(b"".join(one + b"%03d" % number for number in range(200)))
        offsets = [wire.answer().headers["stream-next-offset"] for _ in range(200)]
        assert offsets == sorted(offsets)
        wire.send(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode() * 3 + b"garbage\r\n\r\n")
        expected = b"".join(b"%03d" % number for number in range(200))
        assert [wire.answer().body for _ in range(3)] == [expected] * 3
        assert wire.answer().status == 400
        assert wire.at_end()


def test_a_request_may_arrive_byte_by_byte(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        request = (
            b"PUT %b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        for byte in request % path.encode():
            wire.send(bytes([byte]))
        assert wire.answer().status == 201
        assert wire.ask("GET", path).body == b"abcde"


def test_expect_continue(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        wire.send(
            b"PUT %b HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n" % path.encode()
        )
        assert wire.head()[0] == 100
        wire.send(b"abc")
        assert wire.answer().status == 201


def test_http_1_0_and_connection_close(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        assert wire.ask("PUT", path, b"data").status == 201
    with Wire(server) as wire:
        wire.send(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
        assert wire.answer().body == b"data"
        assert wire.at_end()
    with Wire(server) as wire:
        answer = wire.ask("GET", path, connection="close")
        assert answer.headers["connection"] == "close"
        assert wire.at_end()
    with Wire(server) as wire:  # server-sent events without chunks
        wire.send(b"GET %b?offset=-1&live=sse HTTP/1.0\r\n\r\n" % path.encode())
        status, headers = wire.head()
        assert status == 200
        assert "transfer-encoding" not in headers
        assert wire._file.readline() == b"event: data\n"


def test_an_upgrade_is_declined_by_a_normal_response(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(GET.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"))
        assert wire.answer().status == 404
        assert wire.ask("GET", "/v1/stream/none").status == 404


def test_a_request_line_may_name_the_whole_url(server: Server) -> None:
    with Wire(server) as wire:
        assert wire.ask("GET", f"{server.url}/none").status == 404
        assert wire.ask("OPTIONS", "*").status == 404


def test_a_client_that_closed_its_sending_side_gets_its_response(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(b"PUT %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n" % fresh().encode())
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.answer().status == 201


def test_deletion_ends_live_readers(server: Server) -> None:
    path = fresh()
    with Wire(server) as control, Wire(server) as poll, Wire(server) as feed:
        offset = control.ask("PUT", path, b"x").headers["stream-next-offset"]
        poll.send(
            b"GET %b?offset=%b&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n" % (path.encode(), offset.encode())
        )
        feed.send(b"GET %b?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
        assert feed.head()[0] == 200
        assert b"upToDate" in feed.chunk()
        wait_for_readers_of(server, LONG_POLL)
        assert control.ask("DELETE", path).status == 204
        assert poll.answer().status == 404
        assert b'"streamDeleted":true' in feed.chunk()
        assert feed.chunk() == b""
        assert feed.ask("GET", path).status == 404  # the connection lives on


def test_a_source_with_forks_ends_its_live_readers_with_410(server: Server) -> None:
    path = fresh()
    with Wire(server) as control, Wire(server) as poll:
        offset = control.ask("PUT", path, b"x").headers["stream-next-offset"]
        assert control.ask("PUT", f"{path}-fork", stream_forked_from=path).status == 201
        poll.send(
            b"GET %b?offset=%b&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n" % (path.encode(), offset.encode())
        )
        wait_for_readers_of(server, LONG_POLL)
        assert control.ask("DELETE", path).status == 204
        assert poll.answer().status == 410


def test_readers_that_do_not_read_for_a_while_get_all_data(server: Server) -> None:
    path = fresh()
    message = b"Z" * 60_000
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(Wire(server))
        slow = [stack.enter_context(Wire(server)) for _ in range(6)]
        control.ask("PUT", path, content_type="text/plain")
        for wire in slow:
            wire.send(b"GET %b?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
            wire.head()
        for _ in range(500):
            assert control.ask("POST", path, message, content_type="text/plain").status == 204
        for wire in slow:
            count = 0
            while count < 500 * len(message):
                chunk = wire.chunk()
                count += chunk.count(b"Z")
            assert count == 500 * len(message)
            assert wire.chunk().endswith(b'"upToDate":true}\n\n')


def drips_until_answered(wire: Wire) -> bool:
    """Send one more byte of a head that has no end. Whether the server has responded."""
    wire.send(b"a")
    return bool(select.select([wire.sock], [], [], 0.1)[0])


def limited(*limits: str) -> AbstractContextManager[Server]:
    """A server in memory with other limits."""
    return headwater("--memory", *(word for limit in limits for word in ("--limit", limit)))


@pytest.mark.slow
def test_time_outs() -> None:
    with limited("header_s=1", "idle_s=2", "sse_lifetime_s=600", "sse_keep_alive_s=2") as own:
        with Wire(own) as idle, Wire(own) as drip, Wire(own) as feed:
            assert idle.ask("PUT", "/v1/stream/a").status == 201
            feed.send(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n")
            feed.head()
            assert b"control" in feed.chunk()
            drip.send(b"GET /")
            wait_until(lambda: drips_until_answered(drip))
            assert drip.answer().status == 408
            assert idle.at_end()
            assert [feed.chunk() for _ in range(2)] == [b": keep-alive\n\n"] * 2
    with limited("sse_lifetime_s=2", "sse_keep_alive_s=600") as own, Wire(own) as feed:
        assert feed.ask("PUT", "/v1/stream/a").status == 201
        feed.send(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n")
        feed.head()
        assert b"control" in feed.chunk()
        assert feed.chunk() == b""


def test_a_server_prints_its_url_and_stops_cleanly() -> None:
    with headwater("--memory") as own, Wire(own) as feed, Wire(own) as poll:
        with Wire(own) as wire:
            assert wire.ask("PUT", "/v1/stream/a").status == 201
        feed.send(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n")
        feed.head()
        feed.chunk()
        poll.send(b"GET /v1/stream/a?offset=now&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_for_readers_of(own, LONG_POLL)
        own.terminate()
        assert feed.chunk() == b""
        assert poll.answer().status == 204


def test_a_declined_upgrade_keeps_the_body_and_the_next_request(server: Server) -> None:
    path = fresh()
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
    head = b"PUT %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: 5\r\n\r\n" % (path.encode(), offer)
    with Wire(server) as wire:
        wire.send(head + b"hello" + b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
        assert wire.answer().status == 201
        assert wire.answer().body == b"hello"
    rig = Rig()  # the body in a packet of its own is a body all the same
    rig.send(head)
    assert not rig.requests
    rig.send(b"GET /")
    assert [request.body for request in rig.requests] == [b"GET /"]
    with Wire(server) as wire:
        wire.send(b"CONNECT example.com:443 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.answer().status == 400


def test_any_number_of_requests_may_be_pipelined(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        assert wire.ask("PUT", path, content_type="text/plain").status == 201
        post = (
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nx"
            % path.encode()
        )
        wire.send(post + b"GET /none HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000 + post)
        assert wire.answer().status == 204
        assert [wire.answer().status for _ in range(2000)] == [404] * 2000
        assert wire.answer().status == 204


def test_100_continue_never_appears_inside_another_response(server: Server) -> None:
    path = fresh()
    with Wire(server) as wire:
        assert wire.ask("PUT", path, b"x").status == 201
        wire.send(b"GET %b?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
        wire.head()
        wire.chunk()
        wire.send(b"POST %b HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n" % path.encode())
        wire.send(b"content-type: application/octet-stream\r\ncontent-length: 1\r\n\r\ny")
        wait_until(lambda: metric_of(server, "headwater_http_request_bytes"))
        with Wire(server) as other:
            assert other.ask("DELETE", path).status == 204
        assert b'"streamDeleted":true' in wire.chunk()
        assert wire.chunk() == b""
        assert wire.answer().status == 404


def test_trailers_are_ignored_and_bounded(server: Server) -> None:
    path = fresh()
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked = head + b"1\r\nx\r\n0\r\n"
    with Wire(server) as wire:
        assert wire.ask("PUT", path, content_type="text/plain").status == 201
        wire.send(chunked % path.encode() + b"stream-closed: true\r\n\r\n")
        assert "stream-closed" not in wire.answer().headers
        wire.send(chunked % path.encode() + b"".join(b"x%d: %b\r\n" % (n, b"a" * 1000) for n in range(50)))
        assert wire.answer().status == 431


@pytest.mark.slow
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_slow_client_gets_all_of_its_response(connection: str) -> None:
    with headwater("--memory", "--limit", "linger_s=2", "--limit", "write_stall_s=2") as own:
        with Wire(own) as setup:
            setup.ask("PUT", "/v1/stream/big", b"x" * 12_000_000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.connect((own.host, own.port))
            sock.settimeout(60)
            sock.sendall(
                b"GET /v1/stream/big HTTP/1.1\r\nhost: localhost\r\nconnection: %b\r\n\r\n" % connection.encode()
            )
            received = 0
            while received < 12_000_000:
                data = sock.recv(400_000)
                assert data, f"cut off after {received} bytes"
                received += len(data)
                time.sleep(0.1)  # a slow client: the whole takes longer than the limits
