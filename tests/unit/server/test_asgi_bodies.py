"""Bodies of requests under an ASGI server: what is refused before a body is read, and how it is held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from headwater.errors import UnauthorizedError
from headwater.limits import HEADERS_MAX, Limits
from headwater.log.commands import Create
from headwater.server.asgi import App
from headwater.server.asgi_requests import Message
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
from headwater.server.problems import problem
from tests.waiting import wait_until_async

Given = tuple[tuple[str, str], ...]


class Exchange:
    """One request to an app. `received` counts the messages that the app has asked for."""

    def __init__(self, pieces: Iterable[bytes], *, ends: bool = True) -> None:
        self._pieces = list(pieces)
        self._ends = ends
        self.received = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        self.received += 1
        if not self._pieces:
            if self._ends:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or not self._ends}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def problem(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.sent[1]["body"])
        return body


async def ask(
    app: App,
    exchange: Exchange,
    method: str = "PUT",
    headers: Given = (),
    version: str = "1.1",
    query: bytes = b"",
) -> Exchange:
    scope = {
        "type": "http",
        "method": method,
        "path": "/v1/stream/a",
        "query_string": query,
        "http_version": version,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, exchange.receive, exchange.send)
    return exchange


def run(exchange: Exchange, limits: Limits | None = None, **request: Any) -> Exchange:
    async def served() -> Exchange:
        app = App(limits=limits)
        try:
            return await ask(app, exchange, **request)
        finally:
            await app.stop()

    return asyncio.run(served())


def test_small_pieces_are_joined() -> None:
    assert run(Exchange([b"ab"] * 10_000)).status == 201


def test_a_request_that_is_refused_is_answered_before_its_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Dispatcher, request: Request) -> Response:
        return problem(UnauthorizedError("no token"), close=True)

    monkeypatch.setattr(Dispatcher, "check_head", refuse)
    exchange = run(Exchange([b"x"] * 3))
    assert (exchange.status, exchange.received) == (401, 0)


def test_an_unknown_route_is_refused_before_its_body_is_read() -> None:
    exchange = run(Exchange([b"x"] * 3), method="TRACE", headers=(("content-length", "3"),))
    assert (exchange.status, exchange.received) == (405, 0)


def test_a_body_that_does_not_arrive_is_refused() -> None:
    exchange = run(Exchange([b"x"], ends=False), Limits(body_stall_s=0.05))
    assert (exchange.status, exchange.problem["retryable"]) == (408, True)


def test_bodies_have_a_budget() -> None:
    exchange = run(Exchange([b"x" * 600] * 2, ends=False), Limits(request_bytes_in_flight_max=1_000))
    assert (exchange.status, exchange.received) == (503, 2)
    assert exchange.problem["type"] == "urn:headwater:overloaded"


def test_out_of_memory_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMemory:
        def __init__(self) -> None:
            raise MemoryError

    monkeypatch.setattr("headwater.server.asgi_requests.Joined", NoMemory)
    exchange = run(Exchange([b"x"]))
    assert (exchange.status, exchange.problem["retryable"]) == (503, True)
    assert (b"retry-after", b"1") in exchange.sent[0]["headers"]


@pytest.mark.parametrize(("version", "codings", "status"), [("1.0", "chunked", 400), ("1.1", "gzip, chunked", 501)])
def test_transfer_encodings(version: str, codings: str, status: int) -> None:
    exchange = run(Exchange([b"x"]), headers=(("transfer-encoding", codings),), version=version)
    assert (exchange.status, exchange.received) == (status, 0)


def test_headers_are_bounded_in_number() -> None:
    assert run(Exchange([b""]), headers=(("x", ""),) * HEADERS_MAX).status == 201
    assert run(Exchange([b""]), headers=(("x", ""),) * (HEADERS_MAX + 1)).status == 431


def test_a_stream_is_not_evicted_while_the_head_of_a_live_read_is_sent() -> None:
    """As on a connection whose client does not read. Otherwise the reader would be told of a deletion."""

    class Slow(Exchange):
        def __init__(self) -> None:
            super().__init__([])
            self.begun, self.free = asyncio.Event(), asyncio.Event()

        async def receive(self) -> Message:
            self.received += 1
            if self.received > 1:
                await asyncio.Event().wait()  # the client stays
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(self, message: Message) -> None:
            self.begun.set()
            await self.free.wait()
            await super().send(message)

    async def served() -> bytes:
        app, exchange = App(), Slow()
        service = (await app.start()).service
        await service.engine.execute(
            Create(path="a", now_ms=service.engine.now_ms(), content_type="text/plain", body=b"data")
        )
        reading = asyncio.ensure_future(ask(app, exchange, method="GET", query=b"offset=-1&live=sse"))
        await exchange.begun.wait()
        for _ in range(2):
            await service.engine._catalogue.evict(0, 0)
        exchange.free.set()
        await wait_until_async(lambda: len(exchange.sent) >= 2)
        reading.cancel()
        await app.stop()
        return bytes(exchange.sent[1]["body"])

    body = asyncio.run(served())
    assert b"data:data" in body
    assert b"streamDeleted" not in body
