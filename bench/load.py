"""The load driver: raw HTTP/1.1 over asyncio, which is fast enough to saturate a server from one core."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bench.servers import Server
from headwater.cli.load import percentile


@dataclass(frozen=True)
class Wire:
    """What differs between streams and tables."""

    root: str
    content_type: str
    live: str  # the query of a live read from the beginning
    ready: bytes  # what the response contains once it is live
    message: bytes  # what comes before the JSON text of a message


STREAMS = Wire("/v1/stream/", "application/json", "offset=-1&live=sse", b"upToDate", b"")
TABLES = Wire("/v1/table/", "text/sequence", "timeout=300&idle=300", b"\r\n\r\n", b"+\tkey\t")


def request(
    method: str, server: Server, path: str, body: bytes = b"", headers: str = "", wire: Wire = STREAMS
) -> bytes:
    return (
        f"{method} {wire.root}{path} HTTP/1.1\r\nhost: {server.host}:{server.port}\r\n"
        f"content-type: {wire.content_type}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    ).encode() + body


def call(server: Server, method: str, path: str, body: bytes = b"", wire: Wire = STREAMS) -> bytes:
    """Send one request on a new connection, and return the response with its headers."""
    return send(server, request(method, server, path, body, "connection: close\r\n", wire))


def send(server: Server, data: bytes) -> bytes:
    """Send a request that closes its connection, and return the response with its headers."""
    with socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(data)
        parts = []
        while data := sock.recv(1 << 20):
            parts.append(data)
        return b"".join(parts)


@dataclass
class Appends:
    """What a run of appends measured."""

    seconds: float = 0.0
    count: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    def latency_ms(self, share: float) -> float:
        return percentile(self.latencies_s, share) * 1000


class _Caller(asyncio.Protocol):
    """One connection that sends a request as soon as the previous one is answered."""

    def __init__(
        self, requests: Sequence[bytes], end: bytes, result: Appends, until_s: float, done: asyncio.Future[None]
    ) -> None:
        self._requests = requests
        self._end = end  # of each response
        self._result = result
        self._until_s = until_s
        self._done = done
        self._turn = 0
        self._sent_s = 0.0
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        if self._transport is not None:
            self._transport.write(self._requests[self._turn % len(self._requests)])
            self._turn += 1

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._buffer[9:10] not in (b"2", b""):
            self._fail(RuntimeError(f"a request failed: {self._buffer[:200]!r}"))
            return
        if not self._buffer.endswith(self._end):
            return
        self._buffer = b""
        now_s = time.perf_counter()
        self._result.latencies_s.append(now_s - self._sent_s)
        if now_s < self._until_s:
            self._send()
        elif self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


async def append_load(
    server: Server, streams: list[list[str]], body: bytes, seconds: float, wire: Wire = STREAMS, headers: str = ""
) -> Appends:
    """Append to streams over one connection for each list. A connection appends to its streams in turn."""
    requests = [[request("POST", server, name, body, headers, wire) for name in names] for names in streams]
    return await request_load([(server, some) for some in requests], seconds)


async def request_load(
    connections: Sequence[tuple[Server, Sequence[bytes]]], seconds: float, end: bytes = b"\r\n\r\n"
) -> Appends:
    """Send requests over connections to servers. Each connection sends its own in turn; each response has the same
    `end`."""
    loop = asyncio.get_running_loop()
    result = Appends()
    started_s = time.perf_counter()
    waiting = []
    for server, requests in connections:
        done = loop.create_future()
        waiting.append(done)

        def connect(r: Sequence[bytes] = requests, d: asyncio.Future[None] = done) -> _Caller:
            return _Caller(r, end, result, started_s + seconds, d)

        await loop.create_connection(connect, server.host, server.port)
    await asyncio.gather(*waiting)
    result.seconds = time.perf_counter() - started_s
    result.count = len(result.latencies_s)
    return result


def create_streams(server: Server, names: list[str], wire: Wire = STREAMS) -> None:
    pipelined = 16 if server.name == "headwater" else 1  # the reference loses some pipelined requests
    with socket.create_connection((server.host, server.port)) as sock:
        for first in range(0, len(names), pipelined):
            group = names[first : first + pipelined]
            sock.sendall(b"".join(request("PUT", server, name, wire=wire) for name in group))
            answers = b""
            while answers.count(b"HTTP/1.1 2") < len(group) or not answers.endswith(b"\r\n\r\n"):
                answers += sock.recv(1 << 20)


def read_all(server: Server, name: str) -> tuple[int, float]:
    """Catch up with a stream from its beginning: body bytes and seconds."""
    buffer = bytearray(4 << 20)
    view = memoryview(buffer)
    offset, size = "-1", 0
    started_s = time.perf_counter()
    with socket.create_connection((server.host, server.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        while True:
            sock.sendall(request("GET", server, f"{name}?offset={offset}"))
            head, got = _read_head(sock, view)
            length = _body_length(head)
            if length is None:
                size += _read_chunked(sock, view, got)
            else:
                size += length
                left = length - len(got)
                while left:
                    count = sock.recv_into(view[: min(left, len(buffer))])
                    if not count:
                        raise ConnectionError("the server closed in the middle of a body")
                    left -= count
            offset = _header(head, b"stream-next-offset").decode()
            if _header(head, b"stream-up-to-date"):
                return size, time.perf_counter() - started_s


def read_rows(server: Server, query: str) -> tuple[int, float]:
    """One finite read of a table: rows and seconds. Rows are counted by their newlines."""
    buffer = bytearray(4 << 20)
    view = memoryview(buffer)
    started_s = time.perf_counter()
    with socket.create_connection((server.host, server.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        # With HTTP/1.0 the body is not chunked, so its only newlines are those of the rows.
        sock.sendall(request("GET", server, query, wire=TABLES).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, got = _read_head(sock, view)
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"a read failed: {head[:200]!r}")
        ends = bytes(got).count(b"\n")
        while count := sock.recv_into(view):
            ends += buffer.count(b"\n", 0, count)
    return ends, time.perf_counter() - started_s


def _read_head(sock: socket.socket, view: memoryview) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        count = sock.recv_into(view[:65536])
        if not count:
            raise ConnectionError("the server closed before a response")
        received += view[:count]
    head, _, rest = received.partition(b"\r\n\r\n")
    return head + b"\r\n", rest


def _header(head: bytes, name: bytes) -> bytes:
    _, separator, rest = head.lower().partition(b"\r\n" + name + b": ")
    return rest.partition(b"\r\n")[0] if separator else b""


def _body_length(head: bytes) -> int | None:
    length = _header(head, b"content-length")
    return int(length) if length else None


def _read_chunked(sock: socket.socket, view: memoryview, got: bytes) -> int:
    size = len(got)
    tail = got[-5:]
    while tail != b"0\r\n\r\n":
        count = sock.recv_into(view)
        size += count
        tail = (tail + bytes(view[:count]))[-5:]
    return size


class _Follower(asyncio.Protocol):
    """A live reader that notes when each message arrived."""

    def __init__(
        self, head: bytes, mark: bytes, arrivals: dict[bytes, list[float]], ready: asyncio.Future[None]
    ) -> None:
        self._head = head
        self._mark = mark
        self._arrivals = arrivals
        self._ready = ready
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._head)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._buffer += data
        if not self._ready.done() and self._mark in self._buffer:
            self._ready.set_result(None)
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            for message in line.split(b'"bench":"')[1:]:
                self._arrivals.setdefault(message[:16], []).append(now_s)


async def follow(
    server: Server, name: str, count: int, arrivals: dict[bytes, list[float]], wire: Wire = STREAMS
) -> list[asyncio.BaseTransport]:
    loop = asyncio.get_running_loop()
    head = request("GET", server, f"{name}?{wire.live}", wire=wire)
    transports: list[asyncio.BaseTransport] = []
    waiting: list[asyncio.Future[None]] = []
    for first in range(0, count, 200):
        for _ in range(min(200, count - first)):
            ready = loop.create_future()
            waiting.append(ready)

            def connect(r: asyncio.Future[None] = ready) -> _Follower:
                return _Follower(head, wire.ready, arrivals, r)

            transport, _ = await loop.create_connection(connect, server.host, server.port)
            transports.append(transport)
        await asyncio.gather(*waiting)
        waiting.clear()
    return transports


async def delivery_load(
    server: Server,
    name: str,
    subscribers: int,
    messages: int,
    pause_s: float,
    wire: Wire = STREAMS,
    *,
    subscribed: Server | None = None,
    from_acknowledgement: bool = False,
) -> list[float]:
    """Seconds from sending an append, or from its acknowledgement, to its arrival at each subscriber. Subscribers may
    be `subscribed` at another server."""
    arrivals: dict[bytes, list[float]] = {}
    sent: dict[bytes, float] = {}
    transports = await follow(subscribed or server, name, subscribers, arrivals, wire)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for number in range(messages):
        mark = b"%016d" % number
        sent[mark] = time.perf_counter()
        body = wire.message + b'{"bench":"%b","pad":"%b"}' % (mark, b"x" * 60)
        writer.write(request("POST", server, name, body, wire=wire))
        await reader.readuntil(b"\r\n\r\n")
        if from_acknowledgement:
            sent[mark] = time.perf_counter()
        await asyncio.sleep(pause_s)
    for _ in range(100):
        if sum(map(len, arrivals.values())) >= messages * subscribers:
            break
        await asyncio.sleep(0.05)
    writer.close()
    for transport in transports:
        transport.close()
    delays = [at_s - sent[mark] for mark, times in arrivals.items() for at_s in times]
    if len(delays) != messages * subscribers:
        raise RuntimeError(f"{len(delays)} of {messages * subscribers} messages arrived")
    return delays


@contextlib.contextmanager
def read_forever(server: Server, name: str, count: int) -> Iterator[Callable[[], float]]:
    """Run readers that repeatedly read a whole stream, in a separate process. Yields a function that returns MB/s."""
    stop = multiprocessing.Event()
    size = multiprocessing.Value("Q", 0)
    process = multiprocessing.Process(target=_readers, args=(server, name, count, stop, size), daemon=True)
    process.start()
    started_s = time.perf_counter()
    try:
        yield lambda: size.value / (time.perf_counter() - started_s) / 1e6
    finally:
        stop.set()
        process.join()


def _readers(server: Server, name: str, count: int, stop: Any, size: Any) -> None:
    def read() -> None:
        while not stop.is_set():
            done, _ = read_all(server, name)
            with size.get_lock():
                size.value += done

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
