"""Both edges, from bytes to bytes, over a server in memory that is made anew for each input."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools

from headwater.engine import Engine
from headwater.engine.clock import Clock
from headwater.limits import RECEIVE_BYTES, Limits
from headwater.log.moments import Moment
from headwater.server.asgi import App
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request
from headwater.server.native.connection import Connection
from headwater.server.native.parsing import KnownHeads, RequestParser
from headwater.server.native.pipeline import Waiting
from headwater.server.native.shared import Shared
from headwater.server.service import Service
from headwater.store.memory import MemoryStore
from tests.fuzz.inputs import Choices, Target

LIMITS = Limits(
    header_bytes_max=8000, url_bytes_max=500, body_bytes_max=3000, long_poll_s=0.001, messages_per_append_max=20
)
TURNS = 60  # of the event loop, in which everything that does not wait is answered
STATUSES = {200, 201, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 410, 412, 413, 414, 415, 421, 431, 503}


class StandingClock(Clock):
    def now_ms(self) -> int:
        return 1_800_000_000_000

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self.now_ms(), 0, 0)


class Failures(logging.Handler):
    """Whatever is logged as an error: an exception that a handler caught and answered with 500."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Transport:
    """Takes all that is written, at once."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, _: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def close(self) -> None:
        self.closing = True

    abort = close


class Responses:
    """The responses in bytes, by the parser of somebody else."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        self.body = b""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_status(self, _: bytes) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body


async def _dispatcher() -> Dispatcher:
    engine = Engine(MemoryStore(), LIMITS, clock=StandingClock())
    await engine.start()
    return Dispatcher(Service(engine, LIMITS, entropy=lambda: 0.5))


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it, and fail if anything was logged as an error, by a handler or by the event loop."""
    failures = Failures()
    logger = logging.getLogger()
    logger.addHandler(failures)
    try:
        asyncio.run(work())
    finally:
        logger.removeHandler(failures)
    assert not failures.found, failures.found[0]


def parser(data: bytes) -> None:
    """Bytes of HTTP: the same requests however they are cut, and bounded."""
    whole, error = _parsed([data])
    cut, other = _parsed(Choices(data).pieces(data))
    heads = KnownHeads()
    again: list[Waiting] = []
    RequestParser(LIMITS, again.append, heads).feed(data)
    known = RequestParser(LIMITS, again.append, heads).repeated(data)
    if known is not None:  # the head of the data is known: its only request is the same
        assert [(known, True)] == whole
    for request, _ in whole:
        assert len(request.body) <= LIMITS.body_bytes_max
        assert len(request.path) + len(request.query) <= LIMITS.url_bytes_max
        assert "host" not in request.headers or "," not in request.headers["host"] or data.count(b",")
    if {error, other} <= {None, 400}:  # how soon a size is noticed depends on what arrived
        assert whole == cut
        assert error == other
    else:
        shorter = min(len(whole), len(cut))
        assert whole[:shorter] == cut[:shorter]


def _parsed(pieces: list[bytes]) -> tuple[list[Waiting], int | None]:
    waits: list[Waiting] = []
    parsing = RequestParser(LIMITS, waits.append)
    for piece in pieces:
        parsing.feed(piece)
        assert parsing.body_bytes <= LIMITS.body_bytes_max
    for request, _ in waits:
        request.head_bytes = 0  # which is known only about
    error = parsing.error
    assert error is None or 400 <= error.status < 500
    parsing.close()
    return waits, None if error is None else error.status


def native(data: bytes) -> None:
    """Bytes to a connection: responses of HTTP/1.1 and nothing else, none of which is the server's fault."""

    async def work() -> None:
        transport, waits = await _converse(await _dispatcher(), Choices(data).pieces(data))
        assert set(waits.statuses) <= STATUSES | {100}, waits.statuses
        assert len(transport.written) < 1 << 20

    run(work)


async def _converse(dispatcher: Dispatcher, pieces: list[bytes]) -> tuple[Transport, Responses]:
    shared = Shared(dispatcher, LIMITS)
    shared.heads.renew_date()
    connection, transport = Connection(shared), Transport()
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    for piece in pieces:
        for start in range(0, len(piece), RECEIVE_BYTES):
            part = piece[start : start + RECEIVE_BYTES]
            if transport.closing:
                break
            connection.get_buffer(len(part))[: len(part)] = part
            connection.buffer_updated(len(part))
        await _turns()
    await asyncio.sleep(0.003)
    await _turns()
    if not transport.closing:
        connection.eof_received()
        await _turns()
    connection.connection_lost(None)
    assert not shared.connections
    assert shared.requests.held_bytes == shared.responses.held_bytes == 0
    await _turns()
    await dispatcher.service.engine.stop()
    responses = Responses()
    responses.feed(bytes(transport.written))
    return transport, responses


METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH")
NAMES = (
    "accept", "accept-encoding", "content-type", "if-match", "if-none-match", "last-event-id", "origin",
    "producer-id", "producer-epoch", "producer-seq", "stream-closed", "stream-seq", "stream-ttl", "stream-expires-at",
    "stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset", "stp-after-seqno", "stp-mirror",
    "stp-fork-seqno", "stp-view-of", "stp-view-type", "content-encoding", "expect", "forwarded",
)  # fmt: skip
PATHS = (
    b"/v1/stream/a", b"/v1/table/a", b"/v1/table/a/notify", b"/v1/stream/__ds/streams", b"/v1/stream/__ds/splits",
    b"/v1/stream/__ds/records", b"/v1/table/__stp/tables", b"/", b"/healthz", b"/v1/stream/",
)  # fmt: skip
UNLIKE = {"date", "connection", "server", "keep-alive", "transfer-encoding", "content-length"}


def _request(choices: Choices) -> Request:
    method = choices.choice(METHODS)
    path = choices.choice(PATHS) + _visible(choices.line()) if choices.number(1) else choices.choice(PATHS)
    path, _, query = path.partition(b"?")
    fields = {"host": "localhost", "x-request-id": "r"}  # else each edge makes one
    for _ in range(choices.number(4)):
        name = choices.choice(NAMES)
        fields[name] = _visible(choices.line(), b" \t").decode("latin-1").strip()
    return Request(
        method, path.decode("latin-1"), query.decode("latin-1"), fields, choices.line().replace(b"\\n", b"\n")
    )


def _visible(text: bytes, besides: bytes = b"") -> bytes:
    """What every HTTP server passes on as it is."""
    return bytes([byte for byte in text if (33 <= byte < 127 and byte not in b"#") or byte in besides])


def both(data: bytes) -> None:
    """A few requests, one after the other, to each edge: the same answers."""
    choices = Choices(data)
    requests = [_request(choices) for _ in range(1 + choices.number(3))]

    async def work() -> None:
        one, other = await _dispatcher(), await _dispatcher()
        app = _app(other)
        for request in requests:
            answers = await _ask_native(one, request), await _ask_asgi(app, request)
            assert answers[0] == answers[1], request
            assert answers[0][0] in STATUSES | {0}, request
        await one.service.engine.stop()
        await other.service.engine.stop()

    run(work)


async def _done(dispatcher: Dispatcher) -> Dispatcher:
    return dispatcher


Answered = tuple[int, dict[str, str], bytes]


async def _ask_native(dispatcher: Dispatcher, request: Request) -> Answered:
    shared = Shared(dispatcher, LIMITS)
    shared.heads.renew_date()
    connection, transport = Connection(shared), Transport()
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    target = request.path + (f"?{request.query}" if request.query else "")
    lines = [f"{request.method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in request.headers.items()]]
    lines.append(f"content-length: {len(request.body)}")
    data = "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body
    connection.get_buffer(len(data))[: len(data)] = data
    connection.buffer_updated(len(data))
    await _settled(lambda: bool(transport.written))
    connection.connection_lost(None)
    await _turns()
    responses = Responses()
    responses.feed(bytes(transport.written))
    status = next((status for status in responses.statuses if status != 100), 0)
    return _compared(status, responses.headers, responses.body)


def asgi(data: bytes) -> None:
    """What a server of somebody else's may hand to the app: any headers and any messages are answered, or left."""
    choices = Choices(data)
    request = _request(choices)
    request.headers |= {
        choices.choice(("content-length", "host", "transfer-encoding")): choices.line().decode("latin-1")
    }
    kinds = ("http.request", "http.disconnect")
    messages = [
        {"type": choices.choice(kinds), "body": choices.line(), "more_body": bool(choices.number(1))}
        for _ in range(choices.number(3))
    ]

    async def work() -> None:
        dispatcher = await _dispatcher()
        app = _app(dispatcher)
        status, _, _ = await _ask_asgi(app, request, messages)
        assert status in STATUSES | {0}
        await dispatcher.service.engine.stop()

    run(work)


def _app(dispatcher: Dispatcher) -> App:
    """An app that has started."""
    app = App(MemoryStore, LIMITS)
    app._dispatcher, app._starting = dispatcher, asyncio.ensure_future(_done(dispatcher))
    app._loop = asyncio.get_running_loop()
    return app


async def _ask_asgi(app: App, request: Request, messages: list[dict[str, Any]] | None = None) -> Answered:
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()
    complete = messages is None
    if messages is None:
        messages = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in request.headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }
    task = asyncio.ensure_future(app(scope, receive, cast(Any, send)))
    await _settled(lambda: task.done() or len(sent) > 1, 200 if complete else 3)
    left.set()
    await asyncio.wait((task,), timeout=5)
    task.cancel()
    if task.done() and not task.cancelled():
        task.result()
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]} if sent else {}
    body = b"".join([message.get("body", b"") for message in sent[1:]])
    return _compared(sent[0]["status"] if sent else 0, headers, body)


async def _settled(done: Callable[[], bool], tries: int = 200) -> None:
    for _ in range(tries):
        await _turns()
        if done():
            await _turns()
            return
        await asyncio.sleep(0.001)


def _compared(status: int, headers: dict[str, str], body: bytes) -> Answered:
    """What must be alike. Of a feed that is the beginning, whose length depends on when it was looked at."""
    if "event-stream" in headers.get("content-type", "") or headers.get("content-type", "").startswith("text/sequence"):
        body = body[:20]
    return status, {name: value for name, value in headers.items() if name not in UNLIKE}, body


GET = b"GET /v1/stream/a HTTP/1.1\r\nhost: localhost\r\n\r\n"
PUT = b"PUT /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n[1]"
CHUNKED = (
    b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n"
)
TABLE = b"PUT /v1/table/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
TABLE += b"POST /v1/table/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\n+\tk\tr\n"
WORDS = (
    GET, PUT, b"\r\n", b"\r\n\r\n", b"GET ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"host: localhost\r\n",
    b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n", b"0\r\n\r\n",
    b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"?offset=-1&live=sse",
    b"?live=long-poll&offset=now",
    b'if-match: "-1"\r\n', b"content-encoding: gzip\r\n", b"%", b"/v1/table/a?timeout=0", b"a" * 300, b"\x00", b"\xff",
)  # fmt: skip
TARGETS = {
    "parser": Target(
        parser,
        (GET, PUT + GET, CHUNKED, GET.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")),
        WORDS,
    ),
    "native": Target(native, (GET, PUT + GET, PUT + CHUNKED, TABLE), WORDS),
    "asgi": Target(
        asgi,
        (b"\x01\x00\x00\x00\n\x0012\n\x01\x00[1]\n\x00",),
        (b"\n", b"\x00", b"\x01", b"\x02", b"9" * 5000 + b"\n", b"\xb2", b"?offset=-1&live=sse\n"),
    ),
    "both": Target(
        both,
        (
            b"\x02\x00\x01\x02application/json\n[1]\n",
            b"\x01\x02\x00\x01\x02application/json\n[1]\n\x00\x00\x00\x00\n",
            b"\x02\x02\x01\x00\n\x01\x01\x00+\tk\tr\\n\n\x00\x01\x01?timeout=0\n\x00\n",
        ),
        (
            b"\n",
            b"\\n",
            b"application/json\n",
            b"?offset=-1&live=sse\n",
            b"?timeout=0\n",
            b"[1]",
            b"true\n",
            b"gzip\n",
            b'"-1"\n',
            b"+\tk\tr\\n\n",
            b"\x00",
            b"\x01",
            b"\x02",
            b"\x03",
            b"9" * 20,
        ),
    ),
}
