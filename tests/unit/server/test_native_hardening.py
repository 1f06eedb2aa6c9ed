"""The native edge and clients that leave, flood or dawdle. Each test has the number of the defect that it shows."""

from __future__ import annotations

import gc

from bench.servers import headwater

from headwater.server.http import Request, Response
from headwater.server.native.connection import Connection
from headwater.server.native.parsing import RequestParser
from tests.unit.server.rig import Rig
from tests.unit.server.wire import Wire


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
