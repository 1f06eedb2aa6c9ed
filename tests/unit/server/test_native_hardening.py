"""The native edge and clients that leave, flood or dawdle. Each test has the number of the defect that it shows."""

from __future__ import annotations

import gc
import select
import time
from contextlib import AbstractContextManager, ExitStack

import pytest
from bench.servers import Server, headwater

from headwater.limits import Limits
from headwater.server.http import Request, Response
from headwater.server.native.connection import Connection
from headwater.server.native.parsing import RequestParser
from tests.unit.server.rig import Rig
from tests.unit.server.wire import Wire

BINARY = "application/octet-stream"


def test_12_14_a_client_that_hangs_up_takes_its_body_with_it() -> None:
    """The bodies were held by a reference cycle until the next garbage collection."""
    with headwater("--memory") as own:
        head = b"POST /v1/stream/a HTTP/1.1\r\nhost: t\r\ncontent-length: 16000000\r\n\r\n"
        before = own.memory_bytes()
        for _ in range(30):
            with Wire(own) as wire:
                wire.send(head + b"x" * 15_000_000)
        with Wire(own) as wire:
            assert wire.ask("GET", "/v1/stream/none").status == 404
        assert own.memory_bytes() - before < 150_000_000  # 30 bodies are 450 MB; freed memory may be kept, up to 64 MiB


def test_12_14_a_lost_connection_is_freed_without_the_garbage_collector() -> None:
    def alive() -> int:
        return sum(type(found) in (Connection, RequestParser, Request) for found in gc.get_objects())

    rig = Rig()
    gc.collect()
    gc.disable()
    try:
        rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc" * 3 + b"POST /a HTTP/1.1\r\nhost")
        assert alive() == 2
        rig.lose()
        rig.requests.clear()
        rig.respond(Response(204))  # the handler answers too late
        del rig.connection
        assert alive() == 0
    finally:
        gc.enable()


def limited(*limits: str) -> AbstractContextManager[Server]:
    return headwater("--memory", *(word for limit in limits for word in ("--limit", limit)))


def trickle(wire: Wire, seconds: float) -> bool:
    """Send a byte now and then; whether the server answers meanwhile."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        wire.send(b"a")
        if select.select([wire.sock], [], [], 0.3)[0]:
            return True
    return False


def test_12_16_bodies_of_all_connections_together_are_bounded() -> None:
    head = b"POST /v1/stream/a HTTP/1.1\r\nhost: t\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n"
    with limited("request_bytes_in_flight_max=4000000") as own, ExitStack() as stack:
        small = stack.enter_context(Wire(own))
        assert small.ask("PUT", "/v1/stream/a", content_type="text/plain").status == 201
        held = [stack.enter_context(Wire(own)) for _ in range(3)]
        for wire in held:
            wire.send(head % 1_200_001 + b"x" * 1_200_000)
        time.sleep(0.2)
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


def test_12_16_unread_responses_of_all_connections_together_are_bounded() -> None:
    with limited("response_bytes_in_flight_max=6000000", "read_chunk_bytes=10000000") as own, ExitStack() as stack:
        control = stack.enter_context(Wire(own))
        assert control.ask("PUT", "/v1/stream/big", b"x" * 10_000_000).status == 201
        for _ in range(8):
            wire = stack.enter_context(Wire(own))
            wire.send(b"GET /v1/stream/big HTTP/1.1\r\nhost: t\r\n\r\n")
            wire.head()
        answer = control.ask("GET", "/v1/stream/big")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert control.ask("POST", "/v1/stream/big", b"x", content_type=BINARY).status == 204  # writes go on
        stack.pop_all().close()
        time.sleep(0.2)
        with Wire(own) as wire:
            assert wire.ask("GET", "/v1/stream/big?offset=now").status == 200


@pytest.mark.slow
def test_12_16_a_body_may_not_trickle() -> None:
    with limited("body_stall_s=1", "body_bytes_per_s_min=1000") as own, Wire(own) as wire:
        wire.send(b"POST /v1/stream/a HTTP/1.1\r\nhost: t\r\ncontent-length: 10000\r\n\r\n")
        assert trickle(wire, 5)
        assert wire.answer().status == 408


def test_12_16_a_body_that_keeps_the_pace_is_not_cut_off() -> None:
    rig = Rig(Limits(body_stall_s=10, body_bytes_per_s_min=100))
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n")
    for _ in range(50):
        rig.pass_time(9)
        rig.send(b"x" * 900)
    assert not rig.transport.unread
    for _ in range(3):
        rig.pass_time(9)
        rig.send(b"x")
    assert b"408" in rig.transport.unread


@pytest.mark.slow
def test_12_16_a_pipelined_head_has_the_same_time_as_the_first() -> None:
    with limited("header_s=1") as own, Wire(own) as wire:
        wire.send(b"GET /v1/stream/none HTTP/1.1\r\nhost: t\r\n\r\nGET /v1/stre")
        assert wire.answer().status == 404
        assert trickle(wire, 4)
        assert wire.answer().status == 408


def test_12_16_budgets_are_given_back_however_a_connection_ends() -> None:
    rig = Rig()
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc" * 4)
    rig.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nabc")
    assert rig.shared.requests.held_bytes == 12
    rig.respond(Response(200, (), (b"x" * 1_000_000,)))
    assert rig.shared.responses.held_bytes > 1_000_000
    rig.transport.drain()
    assert rig.shared.responses.held_bytes == 0
    assert rig.shared.requests.held_bytes == 9
    rig.respond(Response(400, (), (b"x" * 1_000_000,), close=True))
    assert rig.shared.requests.held_bytes == 0
    assert rig.shared.responses.held_bytes > 1_000_000
    rig.lose()
    assert rig.shared.responses.held_bytes == 0
