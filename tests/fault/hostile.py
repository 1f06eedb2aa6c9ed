"""A proxy with the faults of a bad network, determined by a seed.

The fault of a request depends on the seed, the request and its number of repeats, not on timing, so that a failing seed
fails again. Every response uses a separate connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import uvloop
from bench.servers import Server

from tests.loops import loop_in_thread
from tests.servers import Server as Inside

CALM = "calm"
KINDS = (
    "refuse",  # the connection is closed before the request is forwarded
    "lose",  # the server gets the request, the client no response
    "reset",  # the connection is reset within the response
    "cut",  # or closed within the response
    "trickle",  # the response arrives a few bytes at a time
    "delay",
    "duplicate",  # the server gets the request twice, the client the second response
    "500",
    "503",
    "429",
)
_MOODS = {"500": b"500 Internal Server Error", "503": b"503 Unavailable", "429": b"429 Too Many Requests"}


@dataclass(frozen=True)
class Fate:
    kind: str = CALM
    at_byte: int = 0
    then: Callable[[], None] | None = None  # called at the fault


Decide = Callable[[str, int], Fate]


def seeded(seed: int, *, badness: float = 0.5) -> Decide:
    def decide(what: str, times: int) -> Fate:
        chance = random.Random(f"{seed} {what} {times}")
        if chance.random() > badness:
            return Fate()
        kind = chance.choice(KINDS)
        return Fate(kind, int(chance.random() ** 3 * 5_000) if kind in ("reset", "cut") else 0)

    return decide


@dataclass
class Proxy:
    """A proxy and the faults that occurred."""

    url: str
    seen: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def hostile(
    server: Server | Inside, decide: Decide, *, without: tuple[str, ...] = (), of: tuple[str, ...] = ("",)
) -> Iterator[Proxy]:
    """A proxy to a server, which removes some headers from the requests that begin with one of the given texts."""
    with loop_in_thread(uvloop.new_event_loop) as loop, socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = Proxy(f"http://127.0.0.1:{listening.getsockname()[1]}")
        relay = _Relay(server, decide, proxy, without, of)
        serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(relay.handle, sock=listening), loop).result()
        try:
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(_end(serving), loop).result()


async def _end(serving: asyncio.Server) -> None:
    serving.close()
    await asyncio.sleep(0)  # accepted connections become tasks
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Relay:
    def __init__(
        self, server: Server | Inside, decide: Decide, proxy: Proxy, without: tuple[str, ...], of: tuple[str, ...]
    ) -> None:
        names = "|".join(without)
        self._without = re.compile(rf"(?im)^(?:{names}):.*\r\n") if without else None
        self._of = of
        self._server = server
        self._decide = decide
        self._proxy = proxy
        self._handling: set[asyncio.Task[None] | None] = set()  # asyncio only has weak references

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handling.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                what = self._note(head)
                if self._without is not None and what.startswith(self._of):
                    head = self._without.sub("", head.decode()).encode()
                fate = self._decide(what, self._proxy.seen[what])
                self._proxy.seen[what] += 1
                self._proxy.fates[fate.kind] += 1
                await self._meet(fate, head, body, writer)
                if fate.then is not None:
                    fate.then()
            finally:
                writer.close()
                self._handling.discard(asyncio.current_task())

    def _note(self, head: bytes) -> str:
        """The identity of a request: everything except what differs between runs."""
        lines = head.decode().splitlines()
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        self._proxy.headers.append(headers)
        line = re.sub(r"[&?]cursor=[^& ]*", "", lines[0])
        line = re.sub(r"(offset|until)=\d{16}_", r"\1=", line)  # the stream id differs between runs
        line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id", line)  # Spark creates one for every query
        return f"{line} {headers.get('producer-seq', '')}"

    async def _meet(self, fate: Fate, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if fate.kind == "refuse":
            return
        if fate.kind in _MOODS:
            writer.write(b"HTTP/1.1 %b\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\nno" % _MOODS[fate.kind])
            await writer.drain()
            return
        if fate.kind == "delay":
            await asyncio.sleep(0.05)
        if fate.kind in ("duplicate", "lose"):
            async with self._asked(head, body) as answer:
                await answer.read(65_536)
            if fate.kind == "lose":
                return
        sent = 0
        async with self._asked(head, body) as answer:
            while chunk := await answer.read(65_536):
                if fate.kind in ("reset", "cut") and sent + len(chunk) > fate.at_byte:
                    writer.write(chunk[: fate.at_byte - sent])
                    await writer.drain()
                    if fate.kind == "reset":
                        _reset(writer)
                    return
                await self._pass_on(chunk, writer, trickling=fate.kind == "trickle")
                sent += len(chunk)

    async def _pass_on(self, chunk: bytes, writer: asyncio.StreamWriter, *, trickling: bool) -> None:
        if not trickling:
            writer.write(chunk)
            await writer.drain()
            return
        for start in range(0, len(chunk), 97):
            writer.write(chunk[start : start + 97])
            await writer.drain()
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _asked(self, head: bytes, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
        try:
            writer.write(re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)[:-2] + b"connection: close\r\n\r\n" + body)
            await writer.drain()
            yield reader
        finally:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
