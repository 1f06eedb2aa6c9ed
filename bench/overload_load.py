"""Many clients, each with its own connection and one request at a time.

A client sends a request, waits for the response, pauses for about `think_s` seconds and sends the next one. If
responses are fast, the offered rate is clients / think_s. A request is good if it was acknowledged within the deadline;
a client waits for late responses too. After a refusal, a polite client waits as long as Retry-After says.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import cast

from bench.servers import Server

OPENED_AT_ONCE = 100


@dataclass
class Outcome:
    """The results of the requests that got a response within the measured time."""

    seconds: float = 0.0
    good: int = 0
    refused: int = 0
    late: int = 0
    lost: int = 0  # connections that the server closed
    latencies_s: list[float] = field(default_factory=list)  # of all that were acknowledged

    @property
    def per_second(self) -> float:
        return self.good / self.seconds


class _Client(asyncio.Protocol):
    def __init__(self, clients: Clients, request: bytes) -> None:
        self._clients = clients
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        if self._clients.sending and self._transport is not None:
            self._sent_s = time.perf_counter()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Responses to appends are small and arrive in one piece."""
        _, _, retry_s = data.partition(b"retry-after: ")
        self._clients.answered(self, self._sent_s, float(retry_s.split(b"\r", 1)[0]) if retry_s else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._clients.outcome.lost += self._clients.sending

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Clients:
    def __init__(
        self,
        server: Server,
        requests: list[bytes],
        *,
        think_s: float,
        deadline_s: float = 1.0,
        polite: bool = True,
        address: str | None = None,
    ) -> None:
        self._server = server
        self._requests = requests
        self._think_s = think_s
        self._deadline_s = deadline_s
        self._polite = polite
        self._address = address
        self._clients: list[_Client] = []
        self.sending = False
        self.outcome = Outcome()

    async def open(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        while len(self._clients) < count:
            several = min(OPENED_AT_ONCE, count - len(self._clients))
            made = [
                _Client(self, self._requests[(len(self._clients) + number) % len(self._requests)])
                for number in range(several)
            ]
            await asyncio.gather(
                *[
                    loop.create_connection(
                        lambda client=client: client,
                        self._server.host,
                        self._server.port,
                        local_addr=None if self._address is None else (self._address, 0),
                    )
                    for client in made
                ]
            )
            self._clients += made

    async def run(self, warm_up_s: float, seconds: float) -> Outcome:
        """Run the clients, and measure after a warm-up."""
        loop = asyncio.get_running_loop()
        self.sending = True
        for client in self._clients:
            loop.call_later(random.random() * self._think_s, client.send)
        await asyncio.sleep(warm_up_s)
        return await self.measure(seconds)

    async def measure(self, seconds: float) -> Outcome:
        self.outcome = outcome = Outcome()
        began_s = time.perf_counter()
        await asyncio.sleep(seconds)
        outcome.seconds = time.perf_counter() - began_s
        self.outcome = Outcome()
        return outcome

    def answered(self, client: _Client, sent_s: float, retry_s: float | None) -> None:
        outcome, took_s = self.outcome, time.perf_counter() - sent_s
        wait_s = self._think_s * (0.5 + random.random())  # random, so that clients do not send in waves
        if retry_s is not None:
            outcome.refused += 1
            wait_s += retry_s if self._polite else 0.0
        else:
            outcome.latencies_s.append(took_s)
            if took_s <= self._deadline_s:
                outcome.good += 1
            else:
                outcome.late += 1
        if wait_s:
            asyncio.get_running_loop().call_later(wait_s, client.send)
        else:
            client.send()

    def close(self) -> None:
        self.sending = False
        for client in self._clients:
            client.close()
