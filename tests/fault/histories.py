"""Clients that record what servers answer, while processes are killed and stopped, and the check of what they recorded.

A round has some streams and lasts until each has had enough requests, so that each history is small. Each client sends
one request at a time, each to a server of its choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

import httpx

from tests.fault.linearizability import WIDTH, Answer, Append, Call, Create, Delete, Head, Operation, Read, check
from tests.waiting import LIMIT_S

CLIENTS = 10
STREAMS = 4
REQUESTS = 120  # to each stream in a round
UNKNOWN_MAX = 8  # unanswered ones, after which a stream gets no more: the possible orders multiply with each of them
ANSWER_S = 4.0  # after that a client gives up
TEXT = {"content-type": "text/plain"}


class Fault(Protocol):
    """Something that disturbs servers; its name is that of its count."""

    __name__: str

    def __call__(self, rng: random.Random, /) -> Awaitable[None]: ...


class ServerLife:
    """A server process on a port of its own, which is killed, stopped for a while, and started again."""

    def __init__(self, *options: str, port: int, environment: dict[str, str] | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "headwater", "serve", "--port", str(port), *options]
        self._environment = {**os.environ, **(environment or {})}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert process.stdout is not None
        assert "http://" in process.stdout.readline(), f"the server did not start: {' '.join(self._command)}"
        return process

    def end(self, number: signal.Signals) -> int:
        assert self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        self.process.stdout.close()
        return code

    async def kill(self, rng: random.Random) -> None:
        await asyncio.to_thread(self.end, rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        await asyncio.sleep(rng.uniform(0, 0.5))
        self.process = await asyncio.to_thread(self._start)

    async def pause(self, rng: random.Random) -> None:
        """Let it hang, for so long that clients give up."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(0.2, ANSWER_S * 1.5))
        finally:
            self.process.send_signal(signal.SIGCONT)


@dataclass
class Recorder:
    """Counts over all rounds, and the histories of the present one."""

    rng: random.Random
    histories: dict[str, list[Operation]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def is_full(self, path: str) -> bool:
        """Whether the history of a stream is long enough, or has as many unanswered requests as a check can order."""
        history = self.histories[path]
        unknown = sum(operation.answer is None for operation in history)
        return len(history) >= REQUESTS or unknown >= UNKNOWN_MAX

    def value(self) -> str:
        """Another one for each request, also for a retry, so that it is known which request was stored."""
        self.number += 1
        return f"{self.number:0{WIDTH}d}"


class Client:
    """Sends one request after the other, and records what it gets."""

    def __init__(self, name: str, recorder: Recorder, servers: Sequence[httpx.AsyncClient]) -> None:
        self._name = name
        self._recorder = recorder
        self._servers = servers
        self._rng = random.Random(f"{name} {recorder.rng.random()}")
        self._tails: dict[str, tuple[int, int]] = {}
        self._seqs: dict[str, int] = {}
        self._tags: dict[str, tuple[str, Answer]] = {}

    async def run(self, streams: Sequence[str]) -> None:
        while pending := [path for path in streams if not self._recorder.is_full(path)]:
            path = self._rng.choice(pending)
            await self.send(path, self._call(path))
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    def _call(self, path: str) -> Call:
        tail, seq = self._tails.get(path), self._seqs.get(path, 0)
        value = self._recorder.value()
        choices: list[tuple[Call, int]] = [
            (Create(), 3),
            (Append(value), 8),
            (Append(value, if_match=tail), 5 if tail is not None else 0),
            (Append(value, producer=(self._name, 0, seq)), 6),
            (Append("", close=True), 1),
            (Delete(), 1),
            (Read(), 7),
            (Read(tail), 5 if tail is not None else 0),
            (Head(), 5),
        ]
        return self._rng.choices([call for call, _ in choices], [weight for _, weight in choices])[0]

    async def send(self, path: str, call: Call) -> Answer | None:
        number = self._rng.randrange(len(self._servers))
        sent_s = monotonic()
        response: httpx.Response | None = None
        try:
            response = await self._request(self._servers[number], path, call)
        except httpx.ConnectError:
            await asyncio.sleep(0.05)
            return None  # nothing was sent
        except httpx.TransportError as error:
            self._recorder.counts[f"{type(error).__name__} of {type(call).__name__}"] += 1
            answer = None
        else:
            answer = self._answer(path, call, response)
        if answer is not None and isinstance(call, Read) and answer.values is not None and _is_part(response):
            rest = await self.send(path, Read(answer.tail))
            if rest is None or rest.values is None:
                return rest
            answer = replace(rest, values=answer.values + rest.values)
        operation = Operation(call, sent_s, monotonic(), answer, f"{self._name} at server {number}")
        self._recorder.counts[type(call).__name__ if answer is not None else "unknown"] += 1
        if answer is not None or isinstance(call, Create | Append | Delete):
            self._recorder.histories[path].append(operation)
        if answer is not None:
            self._learn(path, call, answer)
        return answer

    def _learn(self, path: str, call: Call, answer: Answer) -> None:
        if answer.tail is not None:
            self._tails[path] = answer.tail
        if not isinstance(call, Append) or call.producer is None:
            return
        if answer.status in (200, 204):
            self._seqs[path] = call.producer[2] + 1
        elif answer.status == 409 and not answer.closed:  # another stream is at the path
            self._seqs[path] = 0

    async def _request(self, server: httpx.AsyncClient, path: str, call: Call) -> httpx.Response:
        if isinstance(call, Create):
            return await server.put(path, headers=TEXT)
        if isinstance(call, Delete):
            return await server.delete(path)
        if isinstance(call, Head):
            return await server.head(path)
        if isinstance(call, Read):
            return await self._read(server, path, call)
        headers = dict(TEXT)
        if call.close:
            headers["stream-closed"] = "true"
        if call.if_match is not None:
            headers["if-match"] = f'"{_offset(call.if_match)}"'
        if call.producer is not None:
            name, epoch, seq = call.producer
            headers |= {"producer-id": name, "producer-epoch": str(epoch), "producer-seq": str(seq)}
        return await server.post(path, headers=headers, content=call.value)

    async def _read(self, server: httpx.AsyncClient, path: str, call: Read) -> httpx.Response:
        if call.after is not None:
            live = {"live": "long-poll"} if self._rng.random() < 0.3 else {}
            return await server.get(path, params={"offset": _offset(call.after), **live})
        tag = self._tags.get(path)
        return await server.get(path, params={"offset": "-1"}, headers={} if tag is None else {"if-none-match": tag[0]})

    def _answer(self, path: str, call: Call, response: httpx.Response) -> Answer | None:
        """What a response says; None if it does not say whether the request was executed."""
        status, headers = response.status_code, response.headers
        assert status < 500 or status == 503, f"{call}: {status} {response.text}"
        if status == 503:
            self._recorder.counts["503"] += 1
            return None
        if status == 304:
            return self._tags[path][1]
        position = headers.get("stream-next-offset")
        answer = Answer(
            status, None if position is None else _parsed(position), headers.get("stream-closed", "") == "true"
        )
        if not isinstance(call, Read) or status not in (200, 204):
            return answer
        text = response.text
        values = tuple(text[at : at + WIDTH] for at in range(0, len(text), WIDTH))
        answer = replace(answer, status=200, values=values)
        if call.after is None and "etag" in headers:
            self._tags[path] = headers["etag"], answer
        return answer


def _is_part(response: httpx.Response | None) -> bool:
    """Whether a read did not reach the tail, because something was appended meanwhile."""
    if response is None or response.status_code != 200:
        return False
    return "stream-up-to-date" not in response.headers and "stream-closed" not in response.headers


def _offset(tail: tuple[int, int]) -> str:
    return f"{tail[0]:016d}_{tail[1] * WIDTH:016d}"


def _parsed(text: str) -> tuple[int, int]:
    incarnation, position = map(int, text.split("_"))
    assert position % WIDTH == 0, f"an offset inside a value: {text}"
    return incarnation, position // WIDTH


async def record(
    urls: Sequence[str], faults: Sequence[Fault], seconds: float, seed: int, pause_s: float = 1.0
) -> Counter[str]:
    """Run rounds for some seconds, and check each history. Returns how many requests of each kind there were."""
    recorder = Recorder(random.Random(seed))
    ends_s = monotonic() + seconds
    stop = asyncio.Event()
    disturbing = asyncio.create_task(_disturb(faults, recorder, pause_s, stop))
    try:
        for number in itertools.count():
            await _round(urls, recorder, f"/history/{seed}/{number}", disturbing)
            if monotonic() > ends_s:
                return recorder.counts
    finally:
        stop.set()
        await disturbing  # a fault is not interrupted: what it has ended runs again afterwards
    raise RuntimeError("rounds do not end by themselves")


async def _round(urls: Sequence[str], recorder: Recorder, prefix: str, disturbing: asyncio.Task[None]) -> None:
    assert not disturbing.done(), disturbing.exception()
    streams = [f"{prefix}/{number}" for number in range(STREAMS)]
    recorder.histories = {path: [] for path in streams}
    async with contextlib.AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=CLIENTS * 2)
        servers = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"{url}/v1/stream", limits=limits, timeout=ANSWER_S)
            )
            for url in urls
        ]
        clients = [Client(f"c{number}", recorder, servers) for number in range(CLIENTS)]
        async with asyncio.TaskGroup() as together:
            for client in clients:
                together.create_task(client.run(streams))
        for path in streams:  # what is there in the end
            while await clients[0].send(path, Read()) is None:
                assert not disturbing.done(), disturbing.exception()
    for history in recorder.histories.values():
        await asyncio.to_thread(check, history)
    recorder.counts["histories"] += len(recorder.histories)


async def _disturb(faults: Sequence[Fault], recorder: Recorder, pause_s: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(recorder.rng.uniform(0, 2 * pause_s)):
                await stop.wait()
        if faults and not stop.is_set():
            fault = recorder.rng.choice(faults)
            await fault(recorder.rng)
            recorder.counts["faults"] += 1
            recorder.counts[f"fault {fault.__name__}"] += 1
