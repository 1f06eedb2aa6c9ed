"""A server on loopback that sends given bytes, and a client that connects to it as tables.example."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpcore

from headwater.limits import Limits
from headwater.outbound import OutboundClient, open_outbound
from headwater.outbound.backend import connect_tcp
from tests.waiting import wait_for_async

CERTIFICATES = Path(__file__).parent / "certificates"  # an authority and a server's, made with openssl for 100 years
PUBLIC = "93.184.216.34"
LIMITS = Limits(
    outbound_connect_s=0.5,
    outbound_request_s=10.0,
    outbound_idle_s=0.3,
    outbound_body_bytes_max=16 * 1024,
    outbound_connections_max=8,
    outbound_connections_per_host_max=4,
)

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server that records request headers, TLS names and the number of connections."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.port = 0
        self.heads: list[bytes] = []
        self.server_names: list[str | None] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.connections = 0
        self.open = 0
        self.open_max = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        self.open += 1
        self.open_max = max(self.open, self.open_max)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                await self._respond(reader, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.tasks.discard(task)
            writer.transport.abort()


def _fixed(response: bytes) -> Respond:
    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)

    return respond


@contextlib.asynccontextmanager
async def peer(respond: Respond | bytes, *, tls: bool = True) -> AsyncIterator[Peer]:
    running = Peer(_fixed(respond) if isinstance(respond, bytes) else respond)
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / "server.pem")
        context.sni_callback = lambda _socket, name, _context: running.server_names.append(name)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0, ssl=context)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        tasks = list(running.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await wait_for_async(lambda: running.open, 0)


class Names:
    """A resolver that returns the answers of a name in turn, and then repeats the last one."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(each) for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if answers is None:
            raise OSError("name not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Wire:
    """A connector that connects every address to one local port, and records the addresses."""

    def __init__(self, port: int, dead: Sequence[str] = ()) -> None:
        self._port = port
        self._dead = dead
        self.addresses: list[tuple[str, int]] = []

    async def __call__(self, address: str, port: int, timeout_s: float | None) -> httpcore.AsyncNetworkStream:
        self.addresses.append((address, port))
        if address in self._dead:
            raise OSError("no route")
        return await connect_tcp("127.0.0.1", self._port, timeout_s)


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))


@contextlib.asynccontextmanager
async def public_client(
    server: Peer, names: Names | None = None, limits: Limits = LIMITS
) -> AsyncIterator[OutboundClient]:
    """A client that reaches the peer as https://tables.example."""
    resolver = names or Names(tables_example=[[PUBLIC]])
    async with open_outbound(limits=limits, resolver=resolver, connector=Wire(server.port), tls=trusting()) as client:
        yield client
