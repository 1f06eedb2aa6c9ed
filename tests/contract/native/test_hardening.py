"""The native edge under clients that disconnect, send too much or send slowly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import random
import re
import resource
import select
import shlex
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import cast

import pytest
from bench.servers import Server, headwater, running

from headwater.limits import HEADER_MEMORY_BYTES, PATHS_CACHED_MAX, REQUEST_MEMORY_BYTES, REQUESTS_PER_TURN, Limits
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.server import compression
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
from headwater.server.native import NativeEdge
from headwater.server.native.connection import Connection
from headwater.server.native.parsing import RequestParser
from headwater.server.routes import resolve
from headwater.server.serve import fit_descriptors
from tests.contract.native.wire import Answer, Wire
from tests.metrics import LONG_POLL, metric_of, value_in, wait_for_readers_of
from tests.unit.server.rig import Rig
from tests.waiting import wait_for, wait_until

GET = b"GET /v1/stream/a HTTP/1.1\r\nhost: localhost\r\n\r\n"
BINARY = "application/octet-stream"
REQUEST_BYTES = "headwater_http_request_bytes"


def test_the_body_of_a_lost_connection_is_not_counted_any_more() -> None:
    with headwater("--memory") as own:
        head = b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16000000\r\n\r\n"
        with Wire(own) as wire:
            wire.send(head + b"x" * 1_000_000)
            wait_until(lambda: metric_of(own, REQUEST_BYTES) > 1_000_000)
        wait_until(lambda: metric_of(own, REQUEST_BYTES) < 1_000_000)


def test_a_lost_connection_is_freed_without_the_garbage_collector() -> None:
    def alive() -> int:
        return sum(type(thing) in (Connection, RequestParser, Request) for thing in gc.get_objects())

    rig = Rig()
    gc.collect()
    gc.disable()
    try:
        rig.send(
            b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc" * 3 + b"POST /a HTTP/1.1\r\nhost"
        )
        assert alive() == 2
        rig.lose()
        rig.requests.clear()
        rig.respond(Response(204))  # the handler answers too late
        del rig.connection
        assert alive() == 0
    finally:
        gc.enable()


def status_of(server: Server, method: str, path: str) -> int:
    """The status of a request on a new connection; 0 if the server closes the connection."""
    try:
        with Wire(server) as wire:
            return wire.ask(method, path).status
    except (EOFError, ConnectionError):
        return 0


def limited(*limits: str) -> AbstractContextManager[Server]:
    return headwater("--memory", *(word for limit in limits for word in ("--limit", limit)))


def trickle(wire: Wire) -> None:
    """Send a byte now and then, until the server responds."""

    def is_answered() -> bool:
        wire.send(b"a")
        return bool(select.select([wire.sock], [], [], 0.1)[0])

    wait_until(is_answered, "the server responds to a slow client")


@pytest.mark.slow
def test_bodies_of_all_connections_together_are_bounded() -> None:
    head = b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n"
    with limited("request_bytes_in_flight_max=4000000", "body_bytes_max=4000000") as own, ExitStack() as stack:
        small = stack.enter_context(Wire(own))
        assert small.ask("PUT", "/v1/stream/a", content_type="text/plain").status == 201
        held = [stack.enter_context(Wire(own)) for _ in range(3)]
        for wire in held:
            wire.send(head % 1_200_001 + b"x" * 1_200_000)
        wait_until(lambda: metric_of(own, REQUEST_BYTES) >= 3 * 1_200_000)
        with Wire(own) as wire:
            wire.send(head % 1_200_001 + b"x" * 1_200_000)
            answer = wire.answer()
            assert answer.problem["type"] == "urn:headwater:overloaded"
            assert answer.headers["retry-after"] == "1"
        assert small.ask("POST", "/v1/stream/a", b"x", content_type="text/plain").status == 204
        for wire in held:
            wire.send(b"x")
            assert wire.answer().status == 204
        with Wire(own) as wire:  # there is room again
            wire.send(head % 1_200_001 + b"x" * 1_200_001)
            assert wire.answer().status == 204


def test_heads_of_all_connections_together_are_bounded() -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 20_000
    # A quarter of it is for heads.
    with limited("request_bytes_in_flight_max=400000", "body_bytes_max=400000") as own, ExitStack() as stack:
        held = [stack.enter_context(Wire(own)) for _ in range(4)]
        for wire in held:
            wire.send(head)
        wait_until(lambda: metric_of(own, REQUEST_BYTES) >= 4 * len(head))
        with Wire(own) as wire:
            wire.send(head)
            assert wire.answer().problem["type"] == "urn:headwater:overloaded"
        for wire in held:
            wire.send(b"\r\n\r\n")
            assert wire.answer().status == 200


@pytest.mark.slow
def test_unread_responses_of_all_connections_together_are_bounded() -> None:
    with limited("response_bytes_in_flight_max=6000000", "read_chunk_bytes=10000000") as own, ExitStack() as stack:
        control = stack.enter_context(Wire(own))
        assert control.ask("PUT", "/v1/stream/big", b"x" * 10_000_000).status == 201
        for _ in range(8):
            wire = stack.enter_context(Wire(own))
            wire.send(b"GET /v1/stream/big HTTP/1.1\r\nhost: localhost\r\n\r\n")
            wire.head()
        answer = control.ask("GET", "/v1/stream/big")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert control.ask("POST", "/v1/stream/big", b"x", content_type=BINARY).status == 204  # writes go on
        stack.pop_all().close()
        wait_for(lambda: status_of(own, "GET", "/v1/stream/big?offset=now"), 200)


@pytest.mark.slow
def test_a_slow_body_is_refused() -> None:
    with limited("body_stall_s=1", "body_bytes_per_s_min=1000") as own, Wire(own) as wire:
        wire.send(b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000\r\n\r\n")
        trickle(wire)
        assert wire.answer().status == 408


def test_a_body_above_the_minimum_rate_is_accepted() -> None:
    rig = Rig(Limits(body_stall_s=10, body_bytes_per_s_min=100))
    rig.send(b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n")
    for _ in range(50):
        rig.pass_time(9)
        rig.send(b"x" * 900)
    assert not rig.transport.unread
    for _ in range(3):
        rig.pass_time(9)
        rig.send(b"x")
    assert b"408" in rig.transport.unread


@pytest.mark.slow
def test_a_pipelined_head_has_the_same_time_as_the_first() -> None:
    with limited("header_s=1") as own, Wire(own) as wire:
        wire.send(b"GET /v1/stream/none HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/stre")
        assert wire.answer().status == 404
        trickle(wire)
        assert wire.answer().status == 408


def test_budgets_are_released_however_a_connection_ends() -> None:
    rig = Rig()
    rig.send(b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc" * 4)
    incomplete = b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nabc"
    rig.send(incomplete)
    head = REQUEST_MEMORY_BYTES + 2 * HEADER_MEMORY_BYTES + len("hostlocalhostcontent-length3")
    assert rig.shared.requests.held_bytes == 3 * (head + 3) + head + 3
    assert rig.shared.ahead.held_bytes == 3 * (head + 3) + head  # without the body that is being received
    rig.respond(Response(200, (), (b"x" * 1_000_000,)))
    assert rig.shared.responses.held_bytes > 1_000_000
    rig.transport.drain()
    assert rig.shared.responses.held_bytes == 0
    assert rig.shared.requests.held_bytes == 2 * (head + 3) + head + 3
    rig.respond(Response(400, (), (b"x" * 1_000_000,), close=True))
    assert rig.shared.requests.held_bytes == rig.shared.ahead.held_bytes == 0
    assert rig.shared.responses.held_bytes > 1_000_000
    rig.lose()
    assert rig.shared.responses.held_bytes == 0


def test_pipelined_upgrades_are_declined_in_a_loop(server: Server) -> None:
    offer = b"GET /none HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    with Wire(server) as wire:
        wire.send(offer * 3000)
        assert [wire.answer().status for _ in range(3000)] == [404] * 3000


def test_an_upgrade_does_not_hide_other_errors(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(
            b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" * 2
        )
        assert wire.answer().status == 414
        assert wire.at_end()


def test_two_hosts(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
        assert wire.answer().status == 400


def test_chunk_extensions_are_bounded(server: Server) -> None:
    head = b"PUT %b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    end = b"\r\nabc\r\n0\r\n\r\n"
    path = f"/v1/stream/{uuid.uuid4().hex}".encode()
    with Wire(server) as wire:
        wire.send(head % path + b"3;" + b"e" * 10_000 + end)
        assert wire.answer().status == 201
        wire.send(head % path + b"3;" + b"e" * 200_000 + end)
        assert wire.answer().status == 431


def test_many_small_headers_are_bounded(server: Server) -> None:
    with Wire(server) as wire:
        names = b"".join(b"x%05d:\r\n" % number for number in range(6000))
        wire.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + names + b"\r\n")
        assert wire.answer().status == 431


def test_an_encoded_body_is_refused_and_the_connection_stays_open(server: Server) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}"
    with Wire(server) as wire:
        answer = wire.ask("PUT", path, b"xyz", content_encoding="gzip")
        assert answer.problem["type"] == "urn:headwater:unsupported-encoding"
        assert answer.status == 415
        assert answer.headers["accept-encoding"] == "identity"
        assert wire.ask("GET", path).status == 404
        assert wire.ask("PUT", path, b"xyz", content_encoding="Identity").status == 201


def test_long_text_of_clients_is_not_cached() -> None:
    paths, encodings = cast(dict[str, object], resolve.__self__), compression._choose_known  # type: ignore[attr-defined]
    resolve(f"{STREAM_ROOT}short")
    compression.choose_encoding("gzip")
    before = len(paths), encodings.cache_info().currsize
    assert min(before) > 0
    for number in range(100):
        resolve(f"{STREAM_ROOT}{number:08}/{'%61' * 250}/{'%61' * 250}/{'%61' * 250}")
        compression.choose_encoding(f"gzip, x{number}{'y' * 10_000}")
    assert (len(paths), encodings.cache_info().currsize) == before


def test_the_number_of_cached_paths_is_bounded() -> None:
    for number in range(PATHS_CACHED_MAX + 100):
        resolve(f"{STREAM_ROOT}{number:08}")
    assert len(resolve.__self__) == PATHS_CACHED_MAX  # type: ignore[attr-defined]


def half_closed(server: Server, data: bytes) -> Wire:
    wire = Wire(server)
    wire.send(data)
    wire.sock.shutdown(socket.SHUT_WR)
    return wire


def test_a_get_followed_by_a_half_close_gets_its_response(server: Server) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}"
    with Wire(server) as control:
        assert control.ask("PUT", path, b"data").status == 201
    with half_closed(server, b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode()) as wire:
        assert wire.answer().body == b"data"
        assert wire.at_end()
    with half_closed(server, b"GET %b?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode()) as wire:
        assert wire.head()[0] == 200
        assert b"ZGF0YQ==" in wire.chunk()
        assert wire.chunk() == b""  # a feed has no end to wait for, so it ends
        assert wire.at_end()


def test_three_writes_followed_by_a_half_close_get_their_responses(tmp_path: Path) -> None:
    post = b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nx"
    with headwater("--data-dir", str(tmp_path / "data")) as own, Wire(own) as control:
        assert control.ask("PUT", "/v1/stream/a", content_type="text/plain").status == 201
        for _ in range(5):
            with half_closed(own, post * 3) as wire:
                assert [wire.answer().status for _ in range(3)] == [204] * 3
                assert wire.at_end()


def test_all_requests_before_a_half_close_get_their_responses(server: Server) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}"
    post = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nx" % path.encode()
    )
    get = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode()
    with Wire(server) as control:
        assert control.ask("PUT", path, content_type="text/plain").status == 201
    with half_closed(server, post * 3 + get + post * 40 + get + post[:30]) as wire:
        assert [wire.answer().status for _ in range(3)] == [204] * 3
        assert wire.answer().body == b"xxx"
        assert [wire.answer().status for _ in range(40)] == [204] * 40
        assert wire.answer().body == b"x" * 43
        assert wire.at_end()


@pytest.mark.slow
def test_a_half_closed_connection_has_a_timeout() -> None:
    with limited("half_closed_s=1", "long_poll_s=600") as own, Wire(own) as control:
        assert control.ask("PUT", "/v1/stream/a").status == 201
        poll = b"GET /v1/stream/a?offset=now&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with half_closed(own, poll) as wire:
            with contextlib.suppress(ConnectionError):
                assert wire.at_end()  # long before the end of the long-poll


@pytest.mark.slow
def test_a_stopping_server_answers_everybody() -> None:
    with limited("long_poll_s=600", "read_chunk_bytes=20000000") as own, ExitStack() as stack:
        control, idle, partial, upload, stuck = (stack.enter_context(Wire(own)) for _ in range(5))
        assert control.ask("PUT", "/v1/stream/a", b"x").status == 201
        for wire in (idle, partial, upload, stuck):
            assert wire.ask("GET", "/v1/stream/a").status == 200
        poll = stack.enter_context(Wire(own))
        poll.send(b"GET /v1/stream/a?offset=now&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n" + GET)
        partial.send(GET[:20])
        upload.send(b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: %b\r\n" % BINARY.encode())
        upload.send(b"content-length: 9\r\n\r\nx")
        stuck.send(GET[:20])
        with slow_reader(own) as slow:  # keeps the server in its grace period
            wait_for_readers_of(own, LONG_POLL)
            wait_until(lambda: metric_of(own, REQUEST_BYTES) >= len(GET) + 20 + 1)
            wait_until(lambda: metric_of(own, "headwater_http_unread_bytes"))
            own.terminate()
            assert poll.answer().status == 204  # it was in flight
            first = wait_until(lambda: refused(own))
            assert first is not None
            assert first.headers["connection"] == "close"
            answers = [poll.answer()]  # it had arrived
            partial.send(GET[20:])
            upload.send(b"12345678")
            answers += [partial.answer(), upload.answer()]
            assert [answer.status for answer in answers] == [200, 200, 204]
            assert [answer.headers["connection"] for answer in answers] == ["close"] * 3
            assert all(wire.at_end() for wire in (poll, partial, upload, idle))
            assert len(read_all(slow)) > 10_000_000
        answer = stuck.answer()
        assert answer.problem["type"] == "urn:headwater:stopping"
        assert answer.headers["retry-after"] == "1"
        assert stuck.at_end()


def refused(server: Server) -> Answer | None:
    """The answer to a new connection, if it is 503."""
    with contextlib.suppress(OSError), Wire(server) as wire:
        answer = wire.ask("GET", "/v1/stream/a")
        return answer if answer.status == 503 else None
    return None


@contextlib.contextmanager
def slow_reader(server: Server) -> Iterator[socket.socket]:
    """A client that has requested 10 MB and has not read the response."""
    with Wire(server) as wire:
        assert wire.ask("PUT", "/v1/stream/big", b"x" * 10_000_000).status == 201
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.settimeout(60)
        sock.connect((server.host, server.port))
        sock.sendall(b"GET /v1/stream/big HTTP/1.1\r\nhost: localhost\r\n\r\n")
        yield sock


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def accepted(wire: Wire) -> float:
    """The connections that the server has accepted, also those that it closed at once."""
    return value_in(wire.ask("GET", "/metrics").body.decode(), "headwater_http_accepted_connections_total")


@pytest.mark.slow
def test_connections_above_the_limit_get_503() -> None:
    with limited("connections_max=5") as own, ExitStack() as stack:
        served = [stack.enter_context(Wire(own)) for _ in range(5)]
        assert [wire.ask("GET", "/v1/stream/none").status for wire in served] == [404] * 5
        with Wire(own) as wire:
            answer = wire.ask("GET", "/v1/stream/none")
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert wire.at_end()
        for _ in range(100):
            stack.enter_context(Wire(own))
        assert status_of(own, "GET", "/v1/stream/none") in (0, 503)  # it was accepted after all of these
        assert [wire.ask("GET", "/v1/stream/none").status for wire in served] == [404] * 5


@pytest.mark.slow
def test_refused_connections_do_not_count() -> None:
    with limited("connections_max=2") as own, ExitStack() as stack:
        first, second = (stack.enter_context(Wire(own)) for _ in range(2))
        assert [wire.ask("GET", "/v1/stream/none").status for wire in (first, second)] == [404, 404]
        for _ in range(10):
            stack.enter_context(Wire(own))
        wait_until(lambda: accepted(first) >= 2 + 10)
        second.sock.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: status_of(own, "GET", "/v1/stream/none"), 404)


@pytest.mark.slow
def test_connections_leave_descriptors_to_the_store(tmp_path: Path) -> None:
    """Without this limit, connections could use up all descriptors, and the next fold or segment failed."""
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    command += ["--limit", "segment_bytes=100000", "--limit", "fold_idle_s=0.1"]
    script = f"ulimit -Sn 60; ulimit -Hn 120; exec {shlex.join(command)}"
    with running("headwater", ["bash", "-c", script]) as own, ExitStack() as stack:
        control = stack.enter_context(Wire(own))
        assert control.ask("PUT", "/v1/stream/a", content_type="text/plain").status == 201
        for _ in range(200):
            stack.enter_context(Wire(own))
        for _ in range(30):  # over many segments and folds
            assert control.ask("POST", "/v1/stream/a", b"x" * 50_000, content_type="text/plain").status == 204
        limits = Path(f"/proc/{own.pid}/limits").read_text()
        assert re.search(r"Max open files\s+120\s+120", limits)
        stack.close()
        wait_for(lambda: status_of(own, "HEAD", "/v1/stream/a"), 200)


def test_the_descriptor_limit_bounds_the_connections() -> None:
    assert fit_descriptors(Limits(), 1_048_576).connections_max == 65_536
    assert fit_descriptors(Limits(), 20_000).connections_max == 19_744
    assert fit_descriptors(Limits(), 100).connections_max == 43
    assert fit_descriptors(Limits(connections_max=10), 100).connections_max == 10


def test_running_out_of_descriptors_at_accept_is_temporary() -> None:
    """In a separate process, because the descriptor limit and libuv's reserve are per process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        refused, served, logged = pool.apply(_run_out_of_descriptors)
    assert (refused, served, logged) == (20, True, 0)


def _run_out_of_descriptors() -> tuple[int, bool, int]:
    import uvloop

    return uvloop.run(_accept_without_descriptors())


async def _accept_without_descriptors() -> tuple[int, bool, int]:
    logged = 0

    def count(_loop: object, _context: object) -> None:
        nonlocal logged
        logged += 1

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(count)
    edge = NativeEdge(cast(Dispatcher, Rig()), Limits())
    port = await edge.start("127.0.0.1", 0)
    clients = [socket.socket() for _ in range(21)]
    for client in clients:
        client.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    hoarded = []
    with contextlib.suppress(OSError):
        while True:
            hoarded.append(os.dup(0))
    refused = 0
    for client in clients[:20]:
        await loop.sock_connect(client, ("127.0.0.1", port))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 60) == b""
        refused += 1
    for descriptor in hoarded:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await loop.sock_connect(clients[20], ("127.0.0.1", port))
    await loop.sock_sendall(clients[20], GET)
    served = (await loop.sock_recv(clients[20], 100)).startswith(b"HTTP/1.1 404")
    for client in clients:
        client.close()
    await edge.stop(1)
    return refused, served, logged


def test_a_large_record_with_a_matching_etag_gets_304() -> None:
    with headwater("--memory", "--limit", "read_chunk_bytes=70000") as own, Wire(own) as wire:
        assert wire.ask("PUT", "/v1/stream/large", b"x" * 200_000).status == 201
        tag = dict(wire.ask("HEAD", "/v1/stream/large").headers)["etag"]
        path = b"/v1/stream/large?offset=-1"
        known = b"GET %b HTTP/1.1\r\nhost: localhost\r\nif-none-match: %b\r\n\r\n" % (path, tag.encode())
        wire.send(known + b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = wire.answer()
        assert (answer.status, answer.body) == (304, b"")
        assert "transfer-encoding" not in dict(answer.headers)
        assert wire.answer().status == 200


@pytest.mark.parametrize("requests", [2, 40])
def test_a_lost_connection_is_noticed_although_the_pipeline_was_full(server: Server, requests: int) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}".encode()
    get = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with Wire(server) as wire:
        assert wire.ask("PUT", path.decode(), b"data").status == 201
        wire.send(get * requests + b"GET %b?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
        for _ in range(requests):
            assert wire.answer().status == 200
        assert wire.head()[0] == 200
        assert b"ZGF0YQ==" in wire.chunk()
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.chunk() == b""
        assert wire.at_end()


def test_requests_of_one_connection_are_started_in_turns(server: Server) -> None:
    count = 5 * REQUESTS_PER_TURN
    with Wire(server) as wire:
        wire.send(b"PUT / HTTP/1.1\r\nhost: localhost\r\n\r\n" * count)
        assert [wire.answer().status for _ in range(count)] == [405] * count


def test_damaged_requests_to_tables_cause_no_server_error(server: Server) -> None:
    """Bytes of valid requests are changed, removed and repeated at random. No response is a server error."""
    rng = random.Random(13)
    path = f"/v1/table/{uuid.uuid4().hex}"
    with Wire(server) as wire:
        assert wire.ask("PUT", path, b"+\tkey\trecord\n", content_type="text/sequence").status == 201
    fields = b"host: localhost\r\nconnection: close\r\n"
    good = [
        b"GET %b?since_id=-1&timeout=0 HTTP/1.1\r\n%b\r\n",
        b"GET %b?view=active HTTP/1.1\r\naccept: text/sequence; version=1\r\n%b\r\n",
        b"POST %b HTTP/1.1\r\nproducer-id: p\r\nproducer-epoch: 0\r\nproducer-seq: 0\r\ncontent-length: 6\r\n%b\r\n"
        b"+\ta\tb\n",
        b"POST %b/notify HTTP/1.1\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 2\r\n%b\r\n9=",
    ]
    for number in range(300):
        data = bytearray(good[number % 4] % (path.encode(), fields))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.choice([b"", bytes([rng.randrange(256)]), b"\t", b"\r\n", b"%00"])
        with half_closed(server, bytes(data)) as wire:
            first = wire.sock.makefile("rb").readline()
            assert re.match(rb"HTTP/1\.1 [1-4]|$", first), (bytes(data), first)
    with Wire(server) as wire:
        rows = wire.ask("GET", f"{path}?timeout=0").body.splitlines()
        assert [row.split(b"\t")[0] for row in rows] == [b"%d" % seqno for seqno in range(1, len(rows) + 1)]
        assert all(len(row.split(b"\t")) == 5 for row in rows)
