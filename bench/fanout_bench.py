"""Fan-out: an append to 1,000 and 10,000 readers of one stream, beside a server that only writes the bytes.

The bare server (`python -m bench.fanout_bench`) runs on uvloop too. It parses nothing, stores nothing and keeps no
order: for each POST it writes the events that Headwater would write to every connection that sent a GET. The same load
driver measures both, in turns. So the ratio says what Headwater adds to the sends themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from typing import TYPE_CHECKING, cast

import uvloop

from bench.compare import cpu_s
from bench.load import call, delivery_load
from bench.report import Row
from bench.servers import Server, headwater, running
from headwater.cli.load import percentile

if TYPE_CHECKING:
    from bench.server_bench import Bench, Make

ROUNDS = 3
LOADS = ((1_000, 40, 0.05, "≥ 0.5"), (10_000, 10, 0.5, ""))  # subscribers, messages, pause in s, goal for p99
_OFFSET = "1790000000000000_0000000000000000"
_FIELDS = f'{{"streamNextOffset":"{_OFFSET}","streamCursor":"12345678","upToDate":true}}'
_CONTROL = f"event: control\ndata: {_FIELDS}\n\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


class _Bare(asyncio.Protocol):
    readers: list[asyncio.Transport] = []  # of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(_HEAD + _chunk(_CONTROL.encode()))
            self.readers.append(self._transport)
            return
        if data.startswith(b"POST"):
            body = data.partition(b"\r\n\r\n")[2]
            frame = _chunk(b"event: data\nid: %b\ndata: [%b]\n\n%b" % (_OFFSET.encode(), body, _CONTROL.encode()))
            for reader in self.readers:
                reader.write(frame)
        self._transport.write(_ANSWER)
        if b"connection: close" in data:
            self._transport.close()


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Bare, "127.0.0.1", 0, backlog=4_096)
    print(f"bare server at http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def bare() -> contextlib.AbstractContextManager[Server]:
    return running("bare sends", [sys.executable, "-m", "bench.fanout_bench"])


def run_fanout(bench: Bench) -> None:
    makes: dict[str, Make] = {"headwater": lambda: headwater("--memory"), "bare sends": bare}
    for subscribers, messages, pause_s, goal in LOADS:
        runs: dict[str, list[tuple[list[float], float]]] = {name: [] for name in makes}
        for _ in range(ROUNDS):
            for name, make in makes.items():
                runs[name].append(_measured(make, subscribers, messages, pause_s))
        for share in (0.5, 0.99):
            title = f"SSE delivery p{share * 100:.0f}, {subscribers} subscribers"
            ours, theirs = (statistics.median(percentile(run, share) for run, _ in runs[name]) for name in makes)
            ratio_goal = goal if share == 0.99 else ""
            bench.note(Row(title, "headwater", ours * 1000, "ms", theirs / ours, ratio_goal))
            bench.note(Row(title, "bare sends", theirs * 1000, "ms"))
        title = f"processor time of a delivery, {subscribers} subscribers"
        ours, theirs = (statistics.median(used_s for _, used_s in runs[name]) for name in makes)
        bench.note(Row(title, "headwater", ours * 1e6, "us", theirs / ours))
        bench.note(Row(title, "bare sends", theirs * 1e6, "us"))


def _measured(make: Make, subscribers: int, messages: int, pause_s: float) -> tuple[list[float], float]:
    """The delays of all deliveries, and the processor time of the server for one of them."""
    with make() as server:
        call(server, "PUT", "live")
        before_s = cpu_s(server)
        delays = uvloop.run(delivery_load(server, "live", subscribers, messages, pause_s))
        return delays, (cpu_s(server) - before_s) / len(delays)


if __name__ == "__main__":
    uvloop.run(_serve())
