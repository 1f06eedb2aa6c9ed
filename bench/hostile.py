"""Attacks on a server during ordinary traffic: the longest wait of other clients, and the memory of the server.

python -m bench.hostile [attack ...] [--streams 1000000] [--out bench/results]

Each attack has its own durable server with the default limits. During the attack, 64 connections append every 50 ms,
and a probe sends a request every 5 ms that needs no disk.

    probe      the worst latency of the probe, which includes the effect of other work on the machine
    loop       the maximum processor time of the event loop between two ticks of 5 ms
    loop, wall the maximum time between two ticks, which includes waiting for the processor, a lock or the disk
    appends    the latency of the appends, including fsync
    memory     the maximum resident memory

The bounds: no attack holds the loop for 50 ms, 512 MiB of memory are enough, and no ordinary request fails. If one is
broken, the exit code is 1. Some attacks are with many streams (`hostile_many.py`). They take their number from
`--streams`: a million take half an hour, 50,000 two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench import hostile_many
from bench.history import save
from bench.hostile_server import STALL
from bench.hostile_tools import MIB, at_once, authorization, connect, drain, hang_up, head, many, post, put, send
from bench.servers import Server, running
from headwater.cli.load import percentile
from headwater.server.auth.editing import add_token

LARGE = 16 * MIB
LIGHT_CONNECTIONS = 64
LIGHT_PAUSE_S = 0.05
PROBE_PAUSE_S = 0.005
ATTACK_S = 5.0  # the duration of repeated requests
STALL_MS_GOAL = 50.0
MEMORY_MIB_GOAL = 512.0
STREAMS = 1_000_000  # of the attacks with many streams


@dataclass
class Row:
    attack: str
    probe_worst_ms: float
    probe_p99_ms: float
    loop_ms: float
    loop_wall_ms: float
    append_p99_ms: float
    append_worst_ms: float
    light_failures: int
    memory_mib: float
    notes: list[str]
    broken: list[str]

    def missed(self) -> list[str]:
        """The bounds that the server broke."""
        bounds = {
            "loop": self.loop_ms >= STALL_MS_GOAL,
            "memory": self.memory_mib >= MEMORY_MIB_GOAL,
            "failures": self.light_failures > 0,
        }
        return [name for name, is_broken in bounds.items() if is_broken] + self.broken


# Ordinary traffic


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    if length and not request.startswith(b"HEAD"):
        await reader.readexactly(int(length[1]))
    return int(head.split(b" ", 2)[1])


def _request(server: Server, method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    head = f"{method} /v1/stream/{path} HTTP/1.1\r\nhost: {server.host}:{server.port}\r\n"
    token = "".join(f"{line}\r\n" for line in authorization(server))
    return f"{head}{token}content-length: {len(body)}\r\n{more}\r\n".encode() + body


async def _repeat(server: Server, request: bytes, pause_s: float, stop: asyncio.Event, taken_s: list[float]) -> int:
    """Repeat a request and return the number of failures. A 503 is not a failure."""
    failures = 0
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            while not stop.is_set():
                started_s = time.perf_counter()
                async with asyncio.timeout(30):
                    status = await _ask(reader, writer, request)
                taken_s.append(time.perf_counter() - started_s)
                failures += status >= 400 and status != 503
                await asyncio.sleep(pause_s)
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            failures += 1
            await asyncio.sleep(0.1)
    return failures


async def _light(server: Server, ended: Any) -> tuple[list[float], list[float], int]:
    stop = asyncio.Event()
    probes: list[float] = []
    appends: list[float] = []
    json_type = "content-type: application/json\r\n"
    for number in range(LIGHT_CONNECTIONS):
        put(server, f"light/{number}", "application/json")
    tasks = [asyncio.create_task(_repeat(server, _request(server, "HEAD", "light/0"), PROBE_PAUSE_S, stop, probes))]
    for number in range(LIGHT_CONNECTIONS):
        append = _request(server, "POST", f"light/{number}", b'{"n":1}', json_type)
        tasks.append(asyncio.create_task(_repeat(server, append, LIGHT_PAUSE_S, stop, appends)))
        await asyncio.sleep(LIGHT_PAUSE_S / LIGHT_CONNECTIONS)
    await asyncio.to_thread(ended.wait)
    stop.set()
    return probes, appends, sum(await asyncio.gather(*tasks))


def _light_process(server: Server, ended: Any, pipe: Any) -> None:
    pipe.send(asyncio.run(_light(server, ended)))


CONTROL_END = b'"upToDate":true}\n\n'

# The attacks


def nothing(_: Server) -> None:
    time.sleep(ATTACK_S)


def hung_up_uploads(server: Server) -> None:
    """Ten connections at a time send 15 of 16 MiB and close."""

    def upload(number: int) -> None:
        for _ in range(4):
            sock = connect(server)
            length = f"content-length: {LARGE}"
            send(sock, head(server, "POST", f"up/{number}", "content-type: text/plain", length) + b"x" * (15 * MIB))
            hang_up(sock)

    at_once(10, upload)


def giant_text_records(server: Server) -> None:
    """A text of 16 MiB of newlines as server-sent events, to four readers."""
    put(server, "lines", "text/plain", b"\n" * LARGE)

    def read(_: int) -> None:
        with connect(server) as sock:
            send(sock, head(server, "GET", "lines?offset=-1&live=sse", "connection: close"))
            drain(sock, CONTROL_END + b"\r\n")

    at_once(4, read)


def ones(count: int) -> bytes:
    return b"[" + b"1," * (count - 1) + b"1]"


def forks_inside_a_record(server: Server) -> None:
    """Forks in the middle of a record of a million messages, four at a time."""
    put(server, "source", "application/json", ones(1_000_000))
    until_s = time.monotonic() + ATTACK_S

    def fork(number: int) -> None:
        for turn in range(50):
            if time.monotonic() > until_s:
                return
            more = ("stream-forked-from: /v1/stream/source", "stream-fork-offset: -1", "stream-fork-sub-offset: 900000")
            put(server, f"fork/{number}/{turn}", "application/json", b"", *more)

    at_once(4, fork)


def millions_of_messages(server: Server) -> None:
    """JSON appends of 8 million messages, four at a time, and as many of one message with as many values."""
    put(server, "json", "application/json")
    body, nested = ones(LARGE // 2 - 1), b"[" + ones(LARGE // 2 - 2) + b"]"

    def append(number: int) -> None:
        for _ in range(3):
            post(server, "json", "application/json", nested if number % 2 else body)

    at_once(4, append)


def readers_with_cursors(server: Server) -> None:
    """40 readers with cursors of their own, and three appends of 16 MiB."""
    put(server, "cursors", "text/plain")
    with many(server, 40) as socks:
        for number, sock in enumerate(socks):
            send(sock, head(server, "GET", f"cursors?offset=-1&live=sse&cursor={10**10 + number}"))
        time.sleep(0.5)
        readers = threading.Thread(target=lambda: at_once(40, lambda number: drain(socks[number], b"never", 8)))
        readers.start()
        for _ in range(3):
            post(server, "cursors", "text/plain", b"x" * LARGE)
        readers.join()


def unfinished_bodies(server: Server) -> None:
    """100 bodies of 16 MiB, of which 8 MiB are sent."""
    with many(server, 100) as socks:

        def begin(number: int) -> None:
            for sock in socks[number::10]:
                sock.settimeout(1)
                length = f"content-length: {LARGE}"
                send(
                    sock, head(server, "POST", f"slow/{number}", "content-type: text/plain", length) + b"x" * (8 * MIB)
                )

        at_once(10, begin)
        time.sleep(2)


def unread_responses(server: Server) -> None:
    """200 connections ask for 16 MiB and read nothing."""
    put(server, "big", "text/plain", b"x" * LARGE)
    with many(server, 200, receive_bytes=4096) as socks:
        for sock in socks:
            send(sock, head(server, "GET", "big?offset=-1"))
        time.sleep(ATTACK_S)


def unread_feeds(server: Server) -> None:
    """200 readers of server-sent events that read nothing of a record of 16 MiB."""
    put(server, "feed", "text/plain", b"x" * LARGE)
    with many(server, 200, receive_bytes=4096) as socks:
        for sock in socks:
            send(sock, head(server, "GET", "feed?offset=-1&live=sse"))
        time.sleep(ATTACK_S)


def woken_together(server: Server) -> None:
    """500 long-polls that one append of 16 MiB answers."""
    put(server, "poll", "text/plain", b"x")
    with many(server, 500, receive_bytes=4096) as socks:
        for sock in socks:
            send(sock, head(server, "GET", "poll?offset=now&live=long-poll"))
        time.sleep(1)
        post(server, "poll", "text/plain", b"x" * LARGE)
        time.sleep(2)


def trickling_bodies(server: Server) -> None:
    """500 bodies that arrive a byte at a time."""
    with many(server, 500) as socks:
        for number, sock in enumerate(socks):
            length = "transfer-encoding: chunked" if number % 2 else f"content-length: {LARGE}"
            send(sock, head(server, "POST", f"trickle/{number}", "content-type: text/plain", length))
        until_s = time.monotonic() + ATTACK_S
        while time.monotonic() < until_s:
            for number, sock in enumerate(socks):
                send(sock, b"1\r\nx\r\n" if number % 2 else b"x")


def pipelined_upgrades(server: Server) -> None:
    """Ten connections that each send 10,000 pipelined requests with an upgrade offer."""
    offer = head(server, "GET", "none", "connection: upgrade", "upgrade: h2c")

    def offers(_: int) -> None:
        with connect(server) as sock:
            reader = threading.Thread(target=drain, args=(sock, b"never", ATTACK_S))
            reader.start()
            send(sock, offer * 10_000)
            reader.join()

    at_once(10, offers)


def chunk_extensions(server: Server) -> None:
    """Chunks with extensions of 8 MiB, and chunks of one byte with long ones."""
    put(server, "ext", "text/plain")

    def chunks(number: int) -> None:
        until_s = time.monotonic() + ATTACK_S
        while time.monotonic() < until_s:
            with connect(server) as sock:
                send(sock, head(server, "POST", "ext", "content-type: text/plain", "transfer-encoding: chunked"))
                extension = b"x" * (8 * MIB if number % 2 else 1000)
                for _ in range(200):
                    if not send(sock, b"1;" + extension + b"\r\nx\r\n"):
                        break

    at_once(8, chunks)


def filled_caches(server: Server) -> None:
    """Requests with long paths, content types and encodings that are always different."""

    def ask(number: int) -> None:
        until_s = time.monotonic() + ATTACK_S
        with connect(server) as sock:
            reader = threading.Thread(target=drain, args=(sock, b"never", ATTACK_S))
            reader.start()
            turn = 0
            while time.monotonic() < until_s:
                turn += 1
                name = f"{number}-{turn}-" + "/".join(["%41" * 60] * 5)
                kind = f"content-type: text/plain; x={number}-{turn}-{'y' * 900}"
                encoding = f"accept-encoding: gzip;q=0.{turn:05d}, x-{'z' * 500}"
                if not send(sock, head(server, "POST", name, kind, encoding, "content-length: 1") + b"x"):
                    break
            reader.join()

    at_once(8, ask)


def hanging_receivers(server: Server) -> None:
    """Webhooks to 300 hosts that accept connections and never answer, and to one that answers without end."""
    put(server, "hooked/0", "application/json", b"[1]")
    with contextlib.ExitStack() as stack:
        for number in range(300):
            sock = stack.enter_context(socket.socket())
            sock.bind((f"127.0.{1 + number // 200}.{1 + number % 200}", 0))
            sock.listen(64)
            url = "http://{}:{}/".format(*sock.getsockname())
            config = {"type": "webhook", "pattern": "hooked/*", "webhook": {"url": url}, "lease_ttl_ms": 600_000}
            put(server, f"__ds/subscriptions/{number}", "application/json", msgspec.json.encode(config))
            if number == 0:
                threading.Thread(target=_answer_without_end, args=(sock,), daemon=True).start()
        until_s = time.monotonic() + ATTACK_S
        while time.monotonic() < until_s:
            post(server, "hooked/0", "application/json", b"[1]")


def _answer_without_end(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with sock:
                send(sock, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                while send(sock, b"100000\r\n" + b"x" * MIB + b"\r\n"):
                    pass


def many_wakes(server: Server) -> None:
    """Appends to a stream that 1,000 subscriptions match, with paths that patterns are made for."""
    put(server, "wake", "application/json")
    config = {"type": "pull-wake", "wake_stream": "wake", "lease_ttl_ms": 600_000}
    for number in range(1_000):
        stars = "/".join("a*"[number >> bit & 1] for bit in range(10))
        pattern = "**" if number % 2 else f"**/{stars}/z"
        body = msgspec.json.encode({**config, "pattern": pattern})
        put(server, f"__ds/subscriptions/{number}", "application/json", body)
    until_s = time.monotonic() + ATTACK_S
    deep = "/".join(["a"] * 60)
    for number in itertools.count():
        if time.monotonic() > until_s:
            return
        put(server, f"{deep}/{number}", "application/json", b"[1]")


ATTACKS: dict[str, Callable[[Server], None]] = {
    "nothing": nothing,
    "hung-up uploads": hung_up_uploads,
    "giant text records": giant_text_records,
    "forks inside a record": forks_inside_a_record,
    "millions of messages": millions_of_messages,
    "readers with cursors": readers_with_cursors,
    "unfinished bodies": unfinished_bodies,
    "unread responses": unread_responses,
    "unread feeds": unread_feeds,
    "woken together": woken_together,
    "trickling bodies": trickling_bodies,
    "pipelined upgrades": pipelined_upgrades,
    "chunk extensions": chunk_extensions,
    "filled caches": filled_caches,
    "hanging receivers": hanging_receivers,
    "many wakes": many_wakes,
}


def measure(name: str, streams: int) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        stall, auth, data_dir = Path(directory) / "stall", Path(directory) / "auth.toml", Path(directory) / "data"
        command = [sys.executable, "-m", "bench.hostile_server", str(stall), "--port", "0", "--data-dir", str(data_dir)]
        tokens = ["", ""]
        if name in hostile_many.ATTACKS:
            tokens = [add_token(auth, None, [scope], None)[0] for scope in ("admin:**", "read:**/nothing-here")]
            command += ["--auth", str(auth)]
        with running("headwater", command) as started:
            server = replace(started, token=tokens[0])
            scene = hostile_many.Scene(server, replace(started, token=tokens[1]), streams, data_dir)
            here, there = multiprocessing.Pipe(duplex=False)
            ended = multiprocessing.Event()
            light = multiprocessing.Process(target=_light_process, args=(server, ended, there))
            light.start()
            time.sleep(1)
            try:
                if name in hostile_many.ATTACKS:
                    hostile_many.ATTACKS[name](scene)
                else:
                    ATTACKS[name](server)
                time.sleep(0.5)
            finally:
                ended.set()
                probes, appends, failures = here.recv()
                light.join()
            loop_s, loop_wall_s = STALL.unpack(stall.read_bytes())
            memory_bytes = _peak_memory_bytes(server)
    return Row(
        name,
        max(probes) * 1000,
        percentile(probes, 0.99) * 1000,
        loop_s * 1000,
        loop_wall_s * 1000,
        percentile(appends, 0.99) * 1000,
        max(appends) * 1000,
        failures,
        memory_bytes / MIB,
        scene.notes,
        scene.broken,
    )


def _peak_memory_bytes(server: Server) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    if match is None:
        raise RuntimeError("no VmHWM in /proc: is this Linux?")
    return int(match[1]) * 1024


COLUMNS = ("attack", "loop", "loop, wall", "probe worst", "probe p99", "appends p99", "worst", "failed", "memory")


def line(row: Row) -> str:
    missed = row.missed()
    times_ms = (
        row.loop_ms,
        row.loop_wall_ms,
        row.probe_worst_ms,
        row.probe_p99_ms,
        row.append_p99_ms,
        row.append_worst_ms,
    )
    return (
        f"{row.attack:24}{''.join(f'{time_ms:9.1f} ms' for time_ms in times_ms)}{row.light_failures:12}"
        f"{row.memory_mib:8.0f} MiB   {'misses: ' + ', '.join(missed) if missed else 'ok'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*ATTACKS, *hostile_many.ATTACKS]
    parser.add_argument("attacks", nargs="*", help=f"which to run; all if none is named: {', '.join(names)}")
    parser.add_argument("--streams", type=int, default=STREAMS, help="number of streams of the attacks with many")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print(f"{COLUMNS[0]:24}" + "".join(f"{name:>12}" for name in COLUMNS[1:]))
    rows = []
    for name in arguments.attacks or names:
        rows.append(measure(name, arguments.streams))
        print(line(rows[-1]), flush=True)
        for note in rows[-1].notes:
            print(f"    {note}", flush=True)
    if arguments.out is not None:
        save("hostile", {"streams": arguments.streams, "rows": [asdict(row) for row in rows]}, arguments.out)
    if any(row.missed() for row in rows):
        sys.exit("the server broke a bound")


if __name__ == "__main__":
    main()
