"""500 streams over one connection, beside 500 connections with one stream each: delivery, processor time and bytes.

Appends go to all streams while they are followed, each a message of 100 bytes. The readers take every byte, count the
messages and do nothing else. With ids, every event of the one connection has the positions of all streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import cast

import uvloop

from bench.auth_bench import processor_s
from bench.load import append_load, create_streams, request
from bench.report import Row
from bench.server_bench import BODY, Bench
from bench.servers import Server, headwater

STREAMS = 500
CONNECTIONS = 64
HISTORY = 200  # messages of each stream that a reader catches up with
RUNS = 3
SINGLE, COMBINED, WITHOUT_IDS = "500 connections", "one connection", "one connection, without ids"
_MARK = b'{"pad"'


def run_many_live(bench: Bench) -> None:
    names = [f"live/{number}" for number in range(STREAMS)]
    targets = {
        SINGLE: [f"{name}?offset=-1&live=sse" for name in names],
        COMBINED: [_combined(names)],
        WITHOUT_IDS: [f"{_combined(names)}&ids=false"],
    }
    runs: dict[str, list[Delivery]] = {kind: [] for kind in targets}
    catching_up: dict[str, list[Delivery]] = {kind: [] for kind in targets}
    for _ in range(RUNS):  # alternating, so that a slow phase of the machine affects all
        for kind, urls in targets.items():
            with headwater("--memory", "--limit", "sse_lifetime_s=3600") as server:
                create_streams(server, names)
                runs[kind].append(uvloop.run(_live(server, names, urls, bench.seconds)))
            with headwater("--memory", "--limit", "sse_lifetime_s=3600") as server:
                create_streams(server, names)
                uvloop.run(_fill(server, names))
                catching_up[kind].append(uvloop.run(_catch_up(server, urls, HISTORY * STREAMS)))
    _report(bench, "live", runs, goal="at least 1")
    _report(bench, "catching up", catching_up, goal="")


def _combined(names: Iterable[str]) -> str:
    return "__ds/live?" + "&".join(f"stream={name}" for name in names)


class Delivery:
    """What readers got: messages, bytes, and the processor time of the server for all of it, with the appends."""

    def __init__(self, messages: int, received_bytes: int, seconds: float, processor_s: float) -> None:
        self.per_second = messages / seconds
        self.bytes_each = received_bytes / messages
        self.processor_us_each = processor_s / messages * 1e6


class _Count:
    """What all readers have received."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self._wanted = -1
        self._reached = asyncio.Event()

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.bytes += size_bytes
        if 0 <= self._wanted <= self.messages:
            self._reached.set()

    async def until(self, messages: int) -> None:
        self._wanted = messages
        self.add(0, 0)
        await self._reached.wait()


class _Reader(asyncio.Protocol):
    def __init__(self, count: _Count, sent: bytes) -> None:
        self._count = count
        self._sent = sent
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._sent)

    def data_received(self, data: bytes) -> None:
        text = self._rest + data
        self._rest = text[-len(_MARK) + 1 :]
        self._count.add(text.count(_MARK), len(data))


async def _readers(server: Server, urls: list[str]) -> tuple[_Count, list[asyncio.Transport]]:
    """What they receive, and their connections."""
    count, transports, loop = _Count(), [], asyncio.get_running_loop()
    for url in urls:
        protocol = partial(_Reader, count, request("GET", server, url))
        transport, _ = await loop.create_connection(protocol, server.host, server.port)
        transports.append(transport)
    return count, transports


async def _live(server: Server, names: list[str], urls: list[str], seconds: float) -> Delivery:
    count, transports = await _readers(server, urls)
    await asyncio.sleep(0.5)  # every reader has its first events
    bytes_before, processor_before_s, started_s = count.bytes, processor_s(server), time.perf_counter()
    groups = [names[first::CONNECTIONS] for first in range(CONNECTIONS)]
    appends = await append_load(server, groups, BODY, seconds)
    await count.until(appends.count)
    taken_s = time.perf_counter() - started_s
    used_s = processor_s(server) - processor_before_s
    for transport in transports:
        transport.close()
    return Delivery(appends.count, count.bytes - bytes_before, taken_s, used_s)


async def _fill(server: Server, names: list[str]) -> None:
    """Appends of ten messages each, so that streams have the same length."""
    body = b"[" + b",".join([BODY] * 10) + b"]"
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for name in names:
        writer.write(request("POST", server, name, body) * (HISTORY // 10))
        for _ in range(HISTORY // 10):
            await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def _catch_up(server: Server, urls: list[str], messages: int) -> Delivery:
    processor_before_s, started_s = processor_s(server), time.perf_counter()
    count, transports = await _readers(server, urls)
    await count.until(messages)
    taken_s = time.perf_counter() - started_s
    used_s = processor_s(server) - processor_before_s
    for transport in transports:
        transport.close()
    return Delivery(messages, count.bytes, taken_s, used_s)


def _report(bench: Bench, what: str, runs: dict[str, list[Delivery]], goal: str) -> None:
    best = {kind: max(each, key=lambda run: run.per_second) for kind, each in runs.items()}
    for kind, run in best.items():
        ratio = None if kind == SINGLE else run.per_second / best[SINGLE].per_second
        goal_here = goal if kind == WITHOUT_IDS else ""
        bench.note(Row(f"messages delivered, {what}", kind, run.per_second, "/s", ratio, goal_here))
    for kind, run in best.items():
        bench.note(Row(f"processor time of a message, {what}", kind, run.processor_us_each / 1000, "ms"))
    for kind, run in best.items():
        bench.note(Row(f"bytes received of a message, {what}", kind, run.bytes_each, "bytes"))
