"""The cost of subscriptions for appends, and the rate and latency of wakes beside the Node reference.

Appends are compared between a server with 10,000 subscriptions over 10,000 streams and one without, loaded alternately.
A wake is an append and the webhook that follows it: each loop appends to a stream of its own, waits for the webhook of
its subscription, answers `{"done": true}` and appends again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import cast

import uvloop

from bench.auth_bench import processor_s
from bench.load import append_load, create_streams, request
from bench.report import Row
from bench.server_bench import BODY, Bench, Make
from bench.servers import Server, headwater, reference
from headwater.cli.load import percentile

SUBSCRIPTIONS = 10_000
PAIRS = 21
PART = 0.2  # of the seconds of a load, for each
CONNECTIONS = 64
LOOPS = 32  # of wakes at the same time
WAKE = "wake/pool"


def run_subscriptions(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as servers:
        plain = servers.enter_context(headwater("--data-dir", f"{directory}/plain"))
        subscribed = servers.enter_context(headwater("--data-dir", f"{directory}/subscribed"))
        matching = [f"sub/{number}" for number in range(SUBSCRIPTIONS)]
        other = [f"bench/{number}" for number in range(CONNECTIONS)]
        for server in (plain, subscribed):
            create_streams(server, [*matching, *other, WAKE])
        started_s = time.perf_counter()
        uvloop.run(_subscribe(subscribed))
        bench.note(Row("subscriptions created", "headwater", SUBSCRIPTIONS / (time.perf_counter() - started_s), "/s"))
        for server in (plain, subscribed):
            server.wait_until_folded()  # a fold of what was created is no cost of the appends that follow
        groups = {"no subscription": [[name] for name in other], "one of 10,000": _groups(matching)}
        for what, goal in (("no subscription", "at least 0.95"), ("one of 10,000", "at least 0.7")):
            _compare(bench, f"appends that match {what}", goal, plain, subscribed, groups[what])
    in_memory: dict[str, Make] = {"headwater": lambda: headwater("--memory"), "node in memory": reference}
    _compare_wakes(bench, "in memory", in_memory)
    with tempfile.TemporaryDirectory() as directory:
        numbers = itertools.count()
        _compare_wakes(
            bench,
            "durable",
            {
                "headwater": lambda: headwater("--data-dir", f"{directory}/{next(numbers)}"),
                "node in memory": reference,
            },
        )


def _groups(names: list[str]) -> list[list[str]]:
    return [names[first::CONNECTIONS] for first in range(CONNECTIONS)]


async def _subscribe(server: Server) -> None:
    """Half of the subscriptions name their stream, half have a pattern."""

    async def some(first: int) -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        for number in range(first, SUBSCRIPTIONS, CONNECTIONS):
            streams = {"streams": [f"sub/{number}"]} if number % 2 else {"pattern": f"sub/{number}/**"}
            body = json.dumps({"type": "pull-wake", "wake_stream": WAKE, **streams}).encode()
            await _exchange(reader, writer, request("PUT", server, f"__ds/subscriptions/s{number}", body))
        writer.close()

    await asyncio.gather(*[some(first) for first in range(CONNECTIONS)])


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> bytes:
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    if head[9:10] != b"2":
        raise RuntimeError(f"a request failed: {head[:300]!r}")
    lowered = head.lower()
    if b"content-length: " in lowered:
        return await reader.readexactly(int(lowered.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    if b"transfer-encoding: chunked" in lowered:
        return await reader.readuntil(b"0\r\n\r\n")
    return b""


def _compare(bench: Bench, what: str, goal: str, plain: Server, subscribed: Server, groups: list[list[str]]) -> None:
    rates: dict[Server, list[float]] = {plain: [], subscribed: []}
    costs: dict[Server, list[float]] = {plain: [], subscribed: []}
    for turn in range(PAIRS + 1):
        for server in (plain, subscribed) if turn % 2 else (subscribed, plain):
            before_s = processor_s(server)
            seconds = bench.seconds if turn == 0 else PART * bench.seconds  # the first is not counted: it wakes
            done = uvloop.run(append_load(server, groups, BODY, seconds))
            if turn:
                rates[server].append(done.per_second)
                costs[server].append((processor_s(server) - before_s) / done.count * 1e6)
    ratio = statistics.median(a / b for a, b in zip(rates[subscribed], rates[plain], strict=True))
    for server, name in ((plain, "without subscriptions"), (subscribed, "with subscriptions")):
        note = f"{statistics.median(costs[server]):.1f} µs of processor each"
        is_ours = server is subscribed
        bench.note(
            Row(
                f"{what}, durable",
                name,
                statistics.median(rates[server]),
                "appends/s",
                ratio if is_ours else None,
                goal if is_ours else "",
                note,
            )
        )


class _Receiver(asyncio.Protocol):
    """A connection of a receiver that answers every webhook with done."""

    def __init__(self, woken: Callable[[bytes], None]) -> None:
        self._woken = woken
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < size:
                return
            self._buffer = rest[size:]
            self._woken(json.loads(rest[:size])["subscription_id"].encode())
            if self._transport is not None:
                self._transport.write(
                    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"done":true}'
                )


async def _wakes(server: Server, loops: int, seconds: float) -> list[float]:
    """The seconds from the acknowledged append to the arrival of its webhook, in so many loops at once."""
    loop = asyncio.get_running_loop()
    waiting: dict[bytes, asyncio.Future[float]] = {}

    def woken(name: bytes) -> None:
        future = waiting.get(name)
        if future is not None and not future.done():
            future.set_result(time.perf_counter())

    receiver = await loop.create_server(lambda: _Receiver(woken), "127.0.0.1", 0, family=socket.AF_INET)
    port = receiver.sockets[0].getsockname()[1]
    latencies: list[float] = []
    until_s = time.perf_counter() + seconds

    async def run(number: int) -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        path, name = f"woken{loops}/{number}", f"w{loops}-{number}"
        config = {"type": "webhook", "streams": [path], "webhook": {"url": f"http://127.0.0.1:{port}/hook"}}
        await _exchange(reader, writer, request("PUT", server, path))
        await _exchange(
            reader, writer, request("PUT", server, f"__ds/subscriptions/{name}", json.dumps(config).encode())
        )
        while time.perf_counter() < until_s:
            future = waiting[name.encode()] = loop.create_future()
            sent_s = time.perf_counter()
            await _exchange(reader, writer, request("POST", server, path, BODY))
            latencies.append(await asyncio.wait_for(future, 30) - sent_s)
        writer.close()

    await asyncio.gather(*[run(number) for number in range(loops)])
    receiver.close()
    return latencies


def _compare_wakes(bench: Bench, what: str, makes: dict[str, Make]) -> None:
    rates: dict[str, list[float]] = {name: [] for name in makes}
    alone: dict[str, list[float]] = {name: [] for name in makes}
    for _ in range(3):
        for name, make in makes.items():
            with make() as server:
                rates[name].append(len(uvloop.run(_wakes(server, LOOPS, bench.seconds))) / bench.seconds)
                alone[name] += uvloop.run(_wakes(server, 1, bench.seconds / 2))
    (ours, rate), *peers = [(name, statistics.median(values)) for name, values in rates.items()]
    bench.note(Row(f"wakes, {LOOPS} at once, {what}", ours, rate, "/s"))
    for name, value in peers:
        bench.note(Row(f"wakes, {LOOPS} at once, {what}", name, value, "/s", rate / value))
    latencies = {name: percentile(values, 0.5) * 1000 for name, values in alone.items()}
    for name, latency_ms in latencies.items():
        note = f"p99 {percentile(alone[name], 0.99) * 1000:.2f} ms"
        ratio = None if name == ours else latency_ms / latencies[ours]
        bench.note(Row(f"latency of a wake, {what}", name, latency_ms, "ms", ratio, note=note))
