"""The native edge: HTTP/1.1 on asyncio transports and httptools.

A connection handles one request at a time and answers in order; what a client pipelines waits, bounded, in the
connection. Nothing is read for a client that does not take its responses. One timer serves every connection:
each has a deadline and knows what it means to miss it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import httptools

from headwater.errors import (
    BadRequestError,
    BodyTooLargeError,
    HeadersTooLargeError,
    HeadwaterError,
    RequestTimeoutError,
    UrlTooLongError,
)
from headwater.limits import Limits
from headwater.protocol.streams import headers
from headwater.server.dispatch import Dispatcher
from headwater.server.http import COMMON_HEADERS, Feed, Frame, Request, Response
from headwater.server.problems import problem

log = logging.getLogger("headwater.server")

_COMMON = "".join(f"{name}: {value}\r\n" for name, value in COMMON_HEADERS)
_NAMES = {
    spelling.encode(): name
    for name in (*headers.REQUEST_HEADERS, "host", "content-type", "content-length", "accept", "user-agent")
    for spelling in (name, name.title())
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = frozenset({204, 304})
_JOIN_BYTES_MAX = 64 * 1024
_NEVER_S = float("inf")


class Connection(asyncio.Protocol):
    __slots__ = (
        "_advancing",
        "_blocked",
        "_body",
        "_body_bytes",
        "_busy",
        "_chunked",
        "_current",
        "_edge",
        "_feed",
        "_head_bytes",
        "_headers",
        "_in_headers",
        "_keep_alive",
        "_lingering",
        "_parser",
        "_queue",
        "_queue_bytes",
        "_reading",
        "_rejected",
        "_task",
        "_transport",
        "_unsent",
        "_upgrade",
        "_url",
        "deadline_s",
    )

    def __init__(self, edge: NativeEdge) -> None:
        self._edge = edge
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        self._queue_bytes = 0
        self._current: Request | None = None
        self._keep_alive = True
        self._chunked = True
        self._task: asyncio.Task[None] | None = None
        self._feed: Feed | None = None
        self._busy = False
        self._blocked = False
        self._reading = True
        self._lingering = False
        self._rejected: HeadwaterError | None = None
        self._advancing = False
        self._unsent = 0
        self._upgrade: bytes | None = None
        self.deadline_s = edge.now_s + edge.limits.header_s
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_headers = True

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport.set_write_buffer_limits(high=self._edge.limits.write_buffer_bytes)
        self._edge.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._edge.forget(self)
        self._transport = None
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
        if self._feed is not None:
            self._feed.cancel()
            self._feed = None

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._parser is None:
            return
        if self._in_headers:
            self._head_bytes += len(data)
        elif not self._busy and not self._blocked:
            self.deadline_s = self._edge.now_s + self._edge.limits.body_stall_s
        self._parse(self._parser, data)
        if self._in_headers and self._head_bytes > self._edge.limits.header_bytes_max:
            self._reject(HeadersTooLargeError(self._header_limit()))
        if self._rejected is not None and not self._busy:
            self._refuse()
        elif self._reading and self._queue_full():
            self._reading = False
            if self._transport is not None:
                self._transport.pause_reading()

    def _parse(self, parser: httptools.HttpRequestParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(BadRequestError(f"not well-formed HTTP/1.1: {error}"))

    def _decline(self, rest: bytes) -> None:
        """Decline an upgrade by answering in HTTP/1.1. The parser takes what follows for another protocol, so the
        request is given once more, to another parser and without the offer."""
        head, self._upgrade = self._upgrade, None
        self._parser = parser = httptools.HttpRequestParser(self)
        self._reset()
        if not head:
            self._reject(BadRequestError("CONNECT is not offered"))
        else:
            self._parse(parser, head + rest)

    def pause_writing(self) -> None:
        self._blocked = True
        self._unsent = self._edge.limits.write_buffer_bytes
        self.deadline_s = self._edge.now_s + self._edge.limits.write_stall_s

    def resume_writing(self) -> None:
        self._blocked = False
        self.deadline_s = _NEVER_S if self._busy else self._edge.now_s + self._edge.limits.idle_s
        if self._feed is not None:
            self._feed.drained()
        elif not self._busy:
            self._next()

    def eof_received(self) -> bool:
        """A client that is done sending still gets the answer to a write; one that was waiting has left."""
        self._keep_alive = False
        return self._busy and self._task is None and self._feed is None

    # From the parser

    def on_message_begin(self) -> None:
        if not self._busy and not self._blocked:
            self.deadline_s = self._edge.now_s + self._edge.limits.header_s

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._edge.limits.url_bytes_max:
            self._reject(UrlTooLongError(f"the URL may have {self._edge.limits.url_bytes_max} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:  # a trailer: bounded, and of no meaning here
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > self._edge.limits.header_bytes_max:
                self._reject(HeadersTooLargeError(self._header_limit()))
            return
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        self._in_headers = False
        given, limits = self._headers, self._edge.limits
        if self._parser is not None and self._parser.should_upgrade():
            self._upgrade = self._head_without_upgrade(self._parser.get_method())
            return
        if not self._busy and not self._blocked:
            self.deadline_s = self._edge.now_s + limits.body_stall_s
        if self._head_bytes > limits.header_bytes_max and sum(map(len, given.values())) > limits.header_bytes_max:
            self._reject(HeadersTooLargeError(self._header_limit()))
            return
        length = given.get("content-length")
        if length is not None and length.isdecimal() and int(length) > limits.body_bytes_max:
            self._reject(BodyTooLargeError(self._body_limit()))
        elif "expect" in given and given["expect"].lower() == "100-continue":
            self._continue()

    def _continue(self) -> None:
        """Invite the body, unless answers before it are still to come: then the client sends it unasked."""
        if self._busy or self._blocked or self._rejected is not None or self._transport is None:
            return
        if self._parser is not None and self._parser.get_http_version() == "1.1":
            self._transport.write(_CONTINUE)

    def _head_without_upgrade(self, method: bytes) -> bytes:
        if method == b"CONNECT":
            return b""  # without it, nothing is left
        lines = [method + b" " + self._url + b" HTTP/1.1"]
        for name, value in self._headers.items():
            if name not in ("connection", "upgrade", "http2-settings"):
                lines.append(f"{name}: {value}".encode("latin-1"))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._edge.limits.body_bytes_max:
            self._reject(BodyTooLargeError(self._body_limit()))
        if self._rejected is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._rejected is not None or self._parser is None or self._upgrade is not None:
            return
        body = self._body
        path, _, query = self._url.partition(b"?")
        request = Request(
            self._parser.get_method().decode("latin-1"),
            path.decode("latin-1"),
            query.decode("latin-1"),
            self._headers,
            b"" if not body else body[0] if len(body) == 1 else b"".join(body),
            self._parser.get_http_version(),
        )
        keep_alive = self._parser.should_keep_alive()
        self._reset()
        if not request.path.startswith("/"):
            self._absolute(request)
        if request.version == "1.1" and "host" not in request.headers:
            self._reject(BadRequestError("an HTTP/1.1 request needs a Host header"))
        elif self._busy or self._blocked:
            self._queue.append((request, keep_alive))
            self._queue_bytes += len(request.body)
        else:
            self._begin(request, keep_alive)

    def _absolute(self, request: Request) -> None:
        """A proxy's request line names the whole URL; `*` stays as it is and finds no route."""
        _, scheme, rest = request.path.partition("://")
        request.path = f"/{rest.partition('/')[2]}" if scheme else request.path

    # Requests in order

    def _begin(self, request: Request, keep_alive: bool) -> None:
        self._busy = True
        self._current = request
        self._keep_alive = keep_alive
        self.deadline_s = _NEVER_S
        task = self._edge.dispatcher.dispatch(request, self._respond)
        if task is not None:  # else it was answered, and perhaps the next one has a task already
            self._task = task

    def _respond(self, response: Response) -> None:
        self._task = None
        transport, request = self._transport, self._current
        if transport is None or request is None:
            return
        keep_alive = self._keep_alive and not response.close and not self._edge.stopping
        if response.feed is not None:
            self._open_feed(transport, request, response, keep_alive)
            return
        self._write(transport, response, head_only=request.method == "HEAD", keep_alive=keep_alive)
        self._finish(keep_alive)

    def _finish(self, keep_alive: bool) -> None:
        self._busy = False
        self._current = None
        if not keep_alive:
            self._linger()
            return
        self.deadline_s = self._edge.now_s + (
            self._edge.limits.write_stall_s if self._blocked else self._edge.limits.idle_s
        )
        if self._queue or self._rejected is not None or not self._reading:
            self._next()

    def _next(self) -> None:
        """Go on with what waits. A loop and not a recursion: any number may be answered at once."""
        if self._advancing:
            return
        self._advancing = True
        while self._queue and not self._busy and not self._blocked and self._transport is not None:
            request, keep_alive = self._queue.popleft()
            self._queue_bytes -= len(request.body)
            self._begin(request, keep_alive)
        self._advancing = False
        if self._busy or self._blocked or self._transport is None:
            return
        if self._rejected is not None:
            self._refuse()
        if not self._reading and not self._queue_full() and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def _queue_full(self) -> bool:
        limits = self._edge.limits
        return len(self._queue) >= limits.pipeline_requests_max or self._queue_bytes > limits.pipeline_bytes_max

    def _write(self, transport: asyncio.Transport, response: Response, *, head_only: bool, keep_alive: bool) -> None:
        body = response.body
        last = "\r\n" if keep_alive else "connection: close\r\n\r\n"
        if response.status not in _BODILESS:
            size = sum(map(len, body))
            last = f"content-length: {size}\r\n{last}"
        head = self._edge.head(response, last)
        if head_only or not body:
            transport.write(head)
        elif size <= _JOIN_BYTES_MAX:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))

    # Refusing

    def _reject(self, error: HeadwaterError) -> None:
        """Nothing more on this connection can be trusted; say why once what came before is answered."""
        if self._rejected is None:
            self._rejected = error

    def _refuse(self) -> None:
        if self._transport is not None and self._rejected is not None and not self._lingering:
            response = problem(self._rejected, close=True)
            self._write(self._transport, response, head_only=False, keep_alive=False)
            self._linger()

    def _linger(self) -> None:
        """Read on for a moment and throw it away: a client still sending must get to see its response."""
        transport = self._transport
        self._lingering = True
        self._busy = False
        self._queue.clear()
        if transport is not None:
            self._unsent = transport.get_write_buffer_size()
            limits = self._edge.limits
            self.deadline_s = self._edge.now_s + (limits.write_stall_s if self._unsent else limits.linger_s)
            if not self._reading:
                transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def _header_limit(self) -> str:
        return f"the headers may have {self._edge.limits.header_bytes_max} bytes"

    def _body_limit(self) -> str:
        return f"a body may have {self._edge.limits.body_bytes_max} bytes"

    # Feeds: this connection is the sink

    def _open_feed(self, transport: asyncio.Transport, request: Request, response: Response, keep_alive: bool) -> None:
        feed = response.feed
        if feed is None:
            raise ValueError("the response has no feed")
        self._keep_alive = keep_alive
        self._chunked = request.version == "1.1"
        last = "\r\n" if keep_alive else "connection: close\r\n\r\n"
        if self._chunked:
            last = f"transfer-encoding: chunked\r\n{last}"
        transport.write(self._edge.head(response, last))
        self._feed = feed
        feed.open(self, self._edge.now_s)

    @property
    def blocked(self) -> bool:
        return self._blocked

    def write(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(frame.chunk if self._chunked else frame.body)

    def end(self) -> None:
        self._feed = None
        if self._transport is not None and self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._finish(self._keep_alive and self._chunked and not self._edge.stopping)

    # Time

    def tick(self, now_s: float) -> None:
        if self._feed is not None and not self._blocked:
            self._feed.tick(now_s)
        if self._transport is None or self._still_sending(now_s) or now_s < self.deadline_s:
            return
        if self._lingering or self._blocked:
            self._transport.abort()
        elif self._busy:
            self.deadline_s = _NEVER_S
        elif self._url or self._headers or self._body_bytes or self._head_bytes:
            self._reject(RequestTimeoutError("the rest of the request did not come"))
            self._refuse()
        else:
            self._transport.close()

    def _still_sending(self, now_s: float) -> bool:
        """A client that takes its response, however slowly, is waited for."""
        if not (self._blocked or self._lingering) or self._transport is None:
            return False
        unsent = self._transport.get_write_buffer_size()
        progress = unsent < self._unsent
        self._unsent = unsent
        if progress:
            limits = self._edge.limits
            self.deadline_s = now_s + (limits.linger_s if unsent == 0 else limits.write_stall_s)
        return progress

    def stop(self) -> None:
        """The server stops: end feeds in good order and idle connections at once; the rest after its answer."""
        if self._feed is not None:
            self._feed.finish()
        elif not self._busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class NativeEdge:
    """The listening side: every connection, the shared timer and the shared parts of responses."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self.connections: set[Connection] = set()
        self.stopping = False
        self.now_s = 0.0
        self._empty = asyncio.Event()
        self._date = ""
        self._fixed: dict[int, bytes] = {}
        self._server: asyncio.Server | None = None
        self._timer: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port is returned, for those who asked for any."""
        loop = asyncio.get_running_loop()
        self._tick(loop.time())
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=4096)
        self._timer = asyncio.create_task(self._run_timer())
        return int(self._server.sockets[0].getsockname()[1])

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.stopping and not self.connections:
            self._empty.set()

    def head(self, response: Response, last: str) -> bytes:
        """The status line and headers; what all responses of a status share was made at the last tick."""
        fixed = self._fixed.get(response.status)
        if fixed is None:
            phrase = HTTPStatus(response.status).phrase
            fixed = f"HTTP/1.1 {response.status} {phrase}\r\ndate: {self._date}\r\n{_COMMON}".encode()
            self._fixed[response.status] = fixed
        lines = "".join([f"{name}: {value}\r\n" for name, value in response.headers])
        return fixed + f"{lines}{last}".encode("latin-1")

    async def _run_timer(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.5)
            self._tick(loop.time())

    def _tick(self, now_s: float) -> None:
        self.now_s = now_s
        self._date = formatdate(usegmt=True)
        self._fixed.clear()
        for connection in tuple(self.connections):
            connection.tick(now_s)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let answers under way finish, and close what is left when the time is up."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        if not self.connections:
            self._empty.set()
        for connection in tuple(self.connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        for connection in tuple(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
