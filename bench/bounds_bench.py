"""Bounds that hold whatever a client sends: how long the event loop is held, memory, hostile input, and Notify.

Each figure has a goal, and `python -m bench` fails if one is missed. They are measured with the default limits, without
other load: `bench.hostile` has attacks during ordinary traffic.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import statistics
import struct
import threading
import time
import tracemalloc
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import brotli
import httpx
import zstandard

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from bench.stalls import Stall, watched
from headwater.client import Client
from headwater.errors import NotAcceptableError
from headwater.log.events import Appended
from headwater.log.moments import Moment
from headwater.protocol.globs import glob
from headwater.protocol.inflating import Inflater
from headwater.protocol.streams.sse import EventReader
from headwater.protocol.tables.content_type import TableType, check_accept
from headwater.store.embedded.journal import encode_batch, encode_header, encode_records, read_segment

LARGE = 16 * 1024 * 1024
STALL_MS_MAX = 50  # of processor time
WAIT_MS_MAX = 300  # of wall time, on a machine that others use too
NOTIFY_MS_MAX = 50
CONTROL_END = b'"upToDate":true}\n\n'
JSON, TEXT = "application/json", "text/plain"


def request(server: Server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """The status and the body of a response, also of an error."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://{server.host}:{server.port}{path}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body or None, fields, method=method), timeout=120
        ) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def expect(server: Server, status: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    answer_status, content = request(server, method, path, body, **headers)
    if answer_status != status:
        raise RuntimeError(f"{method} {path} got {answer_status}, not {status}: {content[:500]!r}")
    return content


def connect(server: Server, *, receive_bytes: int = 0) -> socket.socket:
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(120)
    sock.connect((server.host, server.port))
    return sock


def feed(server: Server, path: str, cursor: str = "") -> socket.socket:
    sock = connect(server)
    query = f"offset=-1&live=sse{f'&cursor={cursor}' if cursor else ''}"
    sock.sendall(f"GET {path}?{query} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
    return sock


def receive(sock: socket.socket, ending: bytes) -> None:
    """Read until the received data ends with these bytes."""
    last = b""
    while not last.endswith(ending):
        chunk = sock.recv(1 << 20)
        if not chunk:
            raise RuntimeError("the feed ended early")
        last = (last + chunk)[-len(ending) :]


def ones(count: int) -> bytes:
    return b"[" + b"1," * (count - 1) + b"1]"


# Stalls of the event loop

Work = Callable[[Server, str, Stall], None]


def text_record(text: bytes) -> Work:
    def work(server: Server, path: str, stall: Stall) -> None:
        expect(server, 201, "PUT", path, text * (LARGE // len(text)), content_type=TEXT)
        with contextlib.closing(feed(server, path)) as sock:
            receive(sock, CONTROL_END)

    return work


def readers_with_cursors(server: Server, path: str, stall: Stall) -> None:
    expect(server, 201, "PUT", path, content_type=TEXT)
    with contextlib.ExitStack() as stack:
        feeds = [
            stack.enter_context(contextlib.closing(feed(server, path, str(10**10 + number)))) for number in range(40)
        ]
        for sock in feeds:
            receive(sock, b"\n\n")
        readers = [threading.Thread(target=receive, args=(sock, CONTROL_END)) for sock in feeds]
        for reader in readers:
            reader.start()
        expect(server, 204, "POST", path, b"x" * LARGE, content_type=TEXT)
        for reader in readers:
            reader.join()


def too_many_messages(server: Server, path: str, stall: Stall) -> None:
    expect(server, 201, "PUT", path, content_type=JSON)
    body = ones(LARGE // 2 - 1)
    stall.reset()
    expect(server, 413, "POST", path, body, content_type=JSON)
    expect(server, 413, "PUT", f"{path}2", body, content_type=JSON)


def json_append(body: bytes) -> Work:
    def work(server: Server, path: str, stall: Stall) -> None:
        expect(server, 201, "PUT", path, content_type=JSON)
        stall.reset()
        expect(server, 204, "POST", path, body, content_type=JSON)

    return work


def fork_inside_a_record(server: Server, path: str, stall: Stall) -> None:
    expect(server, 201, "PUT", path, ones(1_000_000), content_type=JSON)
    stall.reset()
    for number, status in ((999_999, 201), (1_000_001, 400)):
        fork = {"stream_forked_from": path, "stream_fork_offset": "-1", "stream_fork_sub_offset": str(number)}
        expect(server, status, "PUT", f"{path}-{number}", b"", **fork)


STALLS: dict[str, Work] = {
    **{f"a text record of 16 MiB of {text!r} as an event": text_record(text.encode()) for text in "\n\rx"},
    "a text record of 16 MiB of lines of a blank as an event": text_record(b"\n "),
    "a text record of 16 MiB of CRLF as an event": text_record(b"\r\n"),
    "40 readers with their own cursors": readers_with_cursors,
    "a JSON append of eight million messages": too_many_messages,
    "a JSON append of a million messages": json_append(ones(1_000_000)),
    "a JSON append of a string of 16 MiB": json_append(b'[["' + b"x" * (LARGE - 10) + b'"]]'),
    "a JSON append of a nested array of 16 MiB": json_append(b"[[" + b"1," * (LARGE // 2 - 4) + b"1]]"),
    "a JSON append of objects of 16 MiB": json_append(b"[" + b'{"a":{"b":1},"c":[2,3]},' * (LARGE // 24 - 2) + b"4]"),
    "a JSON append of 16 MiB of UTF-8": json_append('["é'.encode() + "ü".encode() * (LARGE // 2 - 10) + b'"]'),
    "a fork inside a record of a million messages": fork_inside_a_record,
}


def measure_stalls(bench: Bench) -> None:
    for name, work in STALLS.items():
        with watched() as (server, stall):
            work(server, f"/v1/stream/{uuid.uuid4().hex}", stall)
            cpu_ms, wall_ms = stall.cpu_s * 1000, stall.wall_s * 1000
        bench.note(
            Row(f"{name}: loop held", "headwater", cpu_ms, "ms", goal=f"< {STALL_MS_MAX}", note="processor time")
        )
        bench.note(Row(f"{name}: loop late", "headwater", wall_ms, "ms", goal=f"< {WAIT_MS_MAX}", note="wall time"))


# Memory


def lost_bodies(server: Server) -> None:
    """30 connections that are lost after 15 MB of a body: 450 MB, unless they are freed."""
    head = b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16000000\r\n\r\n"
    for _ in range(30):
        with contextlib.closing(connect(server)) as sock:
            sock.sendall(head + b"x" * 15_000_000)
    expect(server, 404, "GET", "/v1/stream/none")


def unread_feeds(server: Server) -> None:
    """A stream of 30 MB with six feeds that nobody reads: 180 MB, if it were buffered for each."""
    expect(server, 201, "PUT", "/v1/stream/a", content_type=TEXT)
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            receive(stack.enter_context(contextlib.closing(feed(server, "/v1/stream/a"))), b"\n\n")
        for _ in range(500):
            expect(server, 204, "POST", "/v1/stream/a", b"Z" * 60_000, content_type=TEXT)


def unread_record(server: Server) -> None:
    """A record of 16 MiB with 60 readers that do not read: 960 MiB, if each had a copy."""
    expect(server, 201, "PUT", "/v1/stream/a", b"x" * LARGE, content_type=TEXT)
    with contextlib.ExitStack() as stack:
        for number in range(60):
            sock = stack.enter_context(contextlib.closing(connect(server, receive_bytes=4096)))
            live = "&live=sse" if number % 2 else ""
            sock.sendall(f"GET /v1/stream/a?offset=-1{live} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            if not sock.recv(1):
                raise RuntimeError("a reader got no response")
        if expect(server, 200, "GET", "/v1/stream/a") != b"x" * LARGE:
            raise RuntimeError("the record is not what was written")


MEMORY: dict[str, tuple[Callable[[Server], None], int]] = {
    "memory for lost bodies of 450 MB": (lost_bodies, 150),  # freed memory may be kept, up to 64 MiB
    "memory for six unread feeds of 30 MB": (unread_feeds, 90),  # the stream itself, and growing it takes twice that
    "memory for a record of 16 MiB with 60 readers": (unread_record, 11 * 16),
}


def measure_memory(bench: Bench) -> None:
    for name, (work, goal_mb) in MEMORY.items():
        with headwater("--memory") as server, sampled(server) as peak:
            before = server.memory_bytes()
            work(server)
            grown = max(*peak, server.memory_bytes()) - before
        bench.note(Row(name, "headwater", grown / 1e6, "MB", goal=f"< {goal_mb}", note="resident, at most"))


@contextlib.contextmanager
def sampled(server: Server, every_s: float = 0.02) -> Iterator[list[int]]:
    """The resident memory of a server, again and again."""
    samples, stop = [server.memory_bytes()], threading.Event()

    def sample() -> None:
        while not stop.wait(every_s):
            samples.append(server.memory_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def inflated_bomb(encoding: str) -> Callable[[], None]:
    bomb = BOMBS[encoding](bytes(100_000_000))

    def work() -> None:
        size = sum(len(piece) for piece in Inflater(encoding).feed(bomb))
        if size != 100_000_000:
            raise RuntimeError(f"{size} bytes of a bomb were decompressed")

    return work


def read_bomb() -> Callable[[], None]:
    """A compressed answer of 300 MB, as a client reads it."""
    headers = {
        "content-type": "application/octet-stream",
        "content-encoding": "br",
        "stream-next-offset": "1",
        "stream-up-to-date": "true",
    }
    body = BOMBS["br"](bytes(300_000_000))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=httpx.ByteStream(body)))

    def work() -> None:
        with httpx.Client(transport=transport) as http:
            size = sum(len(data) for data in Client("http://server", http=http).stream("s").read(type=bytes))
        if size != 300_000_000:
            raise RuntimeError(f"{size} bytes of a bomb were read")

    return work


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": lambda data: bytes(brotli.compress(data, quality=1)),
    "zstd": zstandard.ZstdCompressor().compress,
}
ALLOCATIONS: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
    **{
        f"memory to decompress a bomb of 100 MB ({encoding})": (partial(inflated_bomb, encoding), 40)
        for encoding in BOMBS
    },
    "memory of a client for an answer of 300 MB": (read_bomb, 150),
}


def measure_allocations(bench: Bench) -> None:
    for name, (prepare, goal_mb) in ALLOCATIONS.items():
        work = prepare()
        tracemalloc.start()
        try:
            work()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        bench.note(Row(name, "headwater", peak / 1e6, "MB", goal=f"< {goal_mb}", note="allocated, at most"))


# Notify


class _Receiver(BaseHTTPRequestHandler):
    arrived = threading.Event()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.arrived.set()
        self.send_response(204)
        self.end_headers()


def measure_notify(bench: Bench) -> None:
    """From an append to the POST to a NURL."""
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    waits = []
    try:
        with headwater("--memory") as server:
            nurl = urllib.parse.quote(f"http://127.0.0.1:{receiver.server_address[1]}/nurl", safe="")
            form = "application/x-www-form-urlencoded"
            expect(server, 201, "PUT", "/v1/table/t", content_type="text/sequence")
            expect(server, 204, "POST", "/v1/table/t/notify", f"rows={nurl}".encode(), content_type=form)
            for number in range(30):
                _Receiver.arrived.clear()
                began_s = time.perf_counter()
                expect(server, 204, "POST", "/v1/table/t", b"+\tk\t%d\n" % number, content_type="text/sequence")
                if not _Receiver.arrived.wait(60):
                    raise RuntimeError("no notification arrived")
                waits.append(time.perf_counter() - began_s)
                time.sleep(0.01)
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()
    median_ms = statistics.median(waits) * 1000
    bench.note(Row("append to notification", "headwater", median_ms, "ms", goal=f"< {NOTIFY_MS_MAX}", note="median"))


# Input that would be slow with a careless algorithm


def long_line() -> None:
    reader = EventReader()
    line = b"data: " + b"x" * (32 << 20) + b"\n\n"
    for at in range(0, len(line), 65_536):
        reader.feed(line[at : at + 65_536])


def many_stars() -> None:
    for pattern, path in (
        ("*a*/*a*/*a*/*a*/x", "/".join(["a" * 250] * 4)),
        ("**a**b*c*d", "a" * 340 + "b" * 340 + "c" * 340),
        ("**a*a*b/**a*a*b", "/".join(["a" * 200] * 5)),
    ):
        glob(pattern).fullmatch(path)


def accept_headers() -> None:
    for part in ('"', '"\\', '\\"', 'a/b;c="', "a/b;", ',"', "a/b;c=d,"):
        with contextlib.suppress(NotAcceptableError):
            check_accept((part * 1024)[:1024], TableType())


def journal_bait() -> None:
    """The content of an incomplete batch looks like batches."""
    bait = struct.pack("<4sQIIQQQQI", b"HWB\n", 70_000, 0, 4_000_000, 0, 0, 0, 0, 0) * 100_000
    batch = encode_batch(1, Moment(1, 1, 1, 1), encode_records([(Appended(1, 0, 5, bait),)]), 99)
    if read_segment("bait", encode_header(1, 99, 0) + batch[:-1], 1, last=True, sequence=1).batches:
        raise RuntimeError("an incomplete batch was read")


HOSTILE_INPUT: dict[str, tuple[Callable[[], None], int]] = {  # and its limit in ms
    "a line of 32 MiB of server-sent events": (long_line, 2_000),
    "globs with many stars": (many_stars, 1_000),
    "seven hostile Accept headers": (accept_headers, 14),
    "recovery of content that looks like batches": (journal_bait, 2_000),
}


def measure_hostile_input(bench: Bench) -> None:
    for name, (work, goal_ms) in HOSTILE_INPUT.items():
        times = []
        for _ in range(3):
            began_s = time.perf_counter()
            work()
            times.append(time.perf_counter() - began_s)
        bench.note(Row(name, "headwater", min(times) * 1000, "ms", goal=f"< {goal_ms}", note="best of 3"))


def run_bounds(bench: Bench) -> None:
    measure_hostile_input(bench)
    measure_stalls(bench)
    measure_memory(bench)
    measure_allocations(bench)
    measure_notify(bench)
