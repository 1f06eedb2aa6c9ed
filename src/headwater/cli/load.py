"""Load for `headwater bench`, which measures any Durable Streams server from outside.

Appends use plain connections, because a general HTTP client would be the bottleneck. The rest uses the client.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from headwater import limits
from headwater.client.aio import AsyncClient, AsyncStream
from headwater.errors import NetworkError, ServerError


class Measured(msgspec.Struct, frozen=True):
    """One line of the table."""

    what: str
    value: float
    unit: str
    p50_ms: float | None = None
    p99_ms: float | None = None


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


class _Writer(asyncio.Protocol):
    """One connection that appends the same message again after each response."""

    def __init__(self, request: bytes, until_s: float, latencies_s: list[float], done: asyncio.Future[None]) -> None:
        self._request = request
        self._until_s = until_s
        self._latencies_s = latencies_s
        self._done = done
        self._sent_s = 0.0
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ServerError(f"no HTTP response: {error}"))

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        now_s = time.perf_counter()
        if status >= 300:
            self._end(ServerError(f"an append got status {status}"))
            return
        self._latencies_s.append(now_s - self._sent_s)
        if now_s >= self._until_s:
            self._end(None)
        elif self._parser.should_keep_alive():
            self._parser = httptools.HttpResponseParser(self)
            self._send()
        else:
            self._end(ServerError("the server closes the connection after every response"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or NetworkError("the server closed the connection"))

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        if self._transport is not None:
            self._transport.write(self._request)

    def _end(self, error: Exception | None) -> None:
        if not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


class LoadTest:
    """One run against a server. It creates streams and deletes them afterwards."""

    def __init__(self, client: AsyncClient, prefix: str, *, seconds: float, connections: int, size: int) -> None:
        self._client = client
        self._prefix = prefix
        self._seconds = seconds
        self._connections = connections
        self._message = {"pad": "x" * max(0, size - len('{"pad":""}'))}
        self._streams: list[AsyncStream] = []

    async def run(self, note: Callable[[Measured], None]) -> None:
        try:
            note(await self._appends())
            for measured in await self._produce_and_catch_up():
                note(measured)
            note(await self._delivery())
        finally:
            for stream in self._streams:
                await stream.delete()

    async def _stream(self, name: str) -> AsyncStream:
        stream = self._client.stream(f"{self._prefix}/{name}")
        await stream.create()
        self._streams.append(stream)
        return stream

    async def _appends(self) -> Measured:
        """Closed loop: every connection appends to its own stream and waits for the response."""
        loop = asyncio.get_running_loop()
        streams = [await self._stream(f"appends-{number}") for number in range(self._connections)]
        latencies_s: list[float] = []
        started_s = time.perf_counter()
        waiting = []
        for stream in streams:
            done: asyncio.Future[None] = loop.create_future()
            request = _append_request(stream, self._client, msgspec.json.encode(self._message))
            parts = urlsplit(stream.url)
            secure = ssl.create_default_context() if parts.scheme == "https" else None

            def connect(request: bytes = request, done: asyncio.Future[None] = done) -> _Writer:
                return _Writer(request, started_s + self._seconds, latencies_s, done)

            port = parts.port or (443 if secure else 80)
            await loop.create_connection(connect, parts.hostname or "", port, ssl=secure)
            waiting.append(done)
        await asyncio.gather(*waiting)
        seconds = time.perf_counter() - started_s
        return Measured(
            f"appends, {self._connections} connections",
            len(latencies_s) / seconds,
            "/s",
            percentile(latencies_s, 0.5) * 1000,
            percentile(latencies_s, 0.99) * 1000,
        )

    async def _produce_and_catch_up(self) -> tuple[Measured, Measured]:
        stream = await self._stream("producer")
        started_s = time.perf_counter()
        async with stream.producer() as producer:
            while time.perf_counter() - started_s < self._seconds:
                for _ in range(limits.BENCH_FILL_MESSAGES):
                    await producer.append(self._message)
        metrics, wrote_s = producer.metrics, time.perf_counter() - started_s
        started_s = time.perf_counter()
        count = 0
        async for batch in stream.read().batches():
            count += len(batch.items)
        read_s = time.perf_counter() - started_s
        if count != metrics.messages_delivered:
            raise ServerError(f"{metrics.messages_delivered} messages were stored and {count} read")
        return (
            Measured("idempotent producer", count / wrote_s, "messages/s"),
            Measured("catch-up", count / read_s, "messages/s"),
        )

    async def _delivery(self) -> Measured:
        """From sending an append to its arrival at a live reader."""
        stream = await self._stream("live")
        reader = stream.read(live=True)
        batches = reader.batches()
        await anext(batches)
        arrived: dict[int, float] = {}

        async def follow() -> None:
            async for batch in batches:
                for number in batch.items:
                    arrived[number] = time.perf_counter()

        following = asyncio.create_task(follow())
        sent: dict[int, float] = {}
        for number in range(limits.BENCH_LIVE_MESSAGES):
            sent[number] = time.perf_counter()
            await stream.append(number)
            await asyncio.sleep(limits.BENCH_LIVE_PAUSE_S)
        await stream.close()
        await following
        delays = [arrived[number] - sent[number] for number in sent]
        p50, p99 = percentile(delays, 0.5) * 1000, percentile(delays, 0.99) * 1000
        return Measured("delivery to a live reader", p50, "ms", p50, p99)


def _append_request(stream: AsyncStream, client: AsyncClient, body: bytes) -> bytes:
    parts = urlsplit(stream.url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    headers = {**client.headers, "host": parts.netloc, "content-type": "application/json", "content-length": len(body)}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
