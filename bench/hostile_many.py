"""Attacks with many streams and producers, and with bodies of callers without a token (`bench.hostile` runs them).

Each takes a `Scene`: a server that requires tokens, the number of streams of the run, and what to report. The number is
a parameter, because a million streams take many minutes. What an attack reports in `broken` fails the run.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec

from bench.hostile_tools import MIB, at_once, connect, head, many, post, put, send
from bench.servers import Server
from headwater.store.embedded import index
from headwater.store.embedded.layout import INDEX_NAME

CONNECTIONS = 24
PIPELINED = 16
ATTACK_S = 5.0
CREATED_PER_S_MIN = 250
EXPIRED_PER_S_MIN = 1_000.0
SETTLE_S_MAX = 900.0  # how long to wait for expiry, and for disk space
DISK_SHARE_MAX = 0.7  # of the largest size, after half of the streams are deleted


@dataclass
class Scene:
    server: Server
    scoped: Server  # the same, as a caller whose globs match nothing
    streams: int
    data_dir: Path
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def stranger(self) -> Server:
        """The same server, as a caller without a token."""
        return replace(self.server, token="")

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        note = f"{what}: {time.monotonic() - began_s:.0f} s, {self.server.memory_bytes() / MIB:.0f} MiB"
        print(f"    {note}", file=sys.stderr, flush=True)  # a run of a million streams takes long
        self.notes.append(note)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + SETTLE_S_MAX
        while not condition():
            if time.monotonic() > ends_s:
                self.broken.append(f"{what} not within {SETTLE_S_MAX:.0f} s")
                return
            time.sleep(0.1)

    def metric(self, name: str) -> float:
        server = self.server
        request = urllib.request.Request(
            f"http://{server.host}:{server.port}/metrics", headers={"authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            match = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
        if match is None:
            raise RuntimeError(f"the server has no metric {name}")
        return float(match[1])

    def disk_bytes(self) -> int:
        """The size of the index. The journal and the reserve have a fixed size, however many streams there are."""
        return (self.data_dir / INDEX_NAME).stat().st_blocks * 512

    def folded(self) -> tuple[int, int]:
        """The number of streams in the index, and of deleted ones whose space is not returned yet."""
        with contextlib.closing(index.connect(self.data_dir / INDEX_NAME, write=False)) as connection:
            streams = index.IndexReader(connection).meta().streams
            [garbage] = connection.execute("SELECT count(*) FROM garbage").fetchone()
        return streams, int(garbage)


def pipelined(scene: Scene, count: int, request: Callable[[int], bytes]) -> dict[int, int]:
    """Send many requests over some connections, 16 at a time. Returns how often each status came. What an overloaded
    machine refuses with 503 is sent again a second later, so that the run goes on, and breaks the bound."""
    statuses: Counter[int] = Counter()
    refused: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        with connect(scene.server) as sock:
            sock.settimeout(120)
            for first in range(number, count, CONNECTIONS * PIPELINED):
                numbers = list(range(first, min(count, first + CONNECTIONS * PIPELINED), CONNECTIONS))
                while numbers:
                    sock.sendall(b"".join(map(request, numbers)))
                    answers = _answers(sock, len(numbers))
                    again = [one for one, status in zip(numbers, answers, strict=True) if status == 503]
                    with lock:
                        statuses.update(status for status in answers if status != 503)
                        refused.extend(again)
                    numbers = again
                    time.sleep(1.0 if again else 0.0)

    at_once(CONNECTIONS, work)
    if refused:
        scene.broken.append(f"refused with 503 and sent again: {len(refused)} requests")
    return statuses


def _answers(sock: socket.socket, count: int) -> list[int]:
    """Receive answers to pipelined requests. Returns their statuses."""
    received, answers = b"", 0
    while answers < count:
        data = sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed a connection")
        received += data
        answers = received.count(b"HTTP/1.1 ")
    while not received.endswith(b"}") and not received.endswith(b"\r\n\r\n"):
        received += sock.recv(1 << 20)  # the rest of the last answer
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


def create_many(scene: Scene, prefix: str, count: int, body: bytes = b"", *more: str) -> None:
    def request(number: int) -> bytes:
        lines = ("content-type: text/plain", f"content-length: {len(body)}", *more)
        return head(scene.server, "PUT", f"{prefix}{number:07d}", *lines) + body

    _expect(scene, f"creates below {prefix}", pipelined(scene, count, request), 201)


def delete_many(scene: Scene, prefix: str, count: int) -> None:
    def request(number: int) -> bytes:
        return head(scene.server, "DELETE", f"{prefix}{number:07d}", "content-length: 0")

    _expect(scene, f"deletes below {prefix}", pipelined(scene, count, request), 204)


def _expect(scene: Scene, what: str, statuses: dict[int, int], *wanted: int) -> None:
    others = {status: count for status, count in statuses.items() if status not in wanted}
    if others:
        scene.broken.append(f"{what}: {others}")


class _Page(msgspec.Struct):
    streams: list[dict[str, object]]
    next_after: str | None


def page(server: Server, after: str = "", limit: int = 1000) -> _Page:
    request = urllib.request.Request(
        f"{server.url}/__ds/streams?limit={limit}&after={quote(after)}",
        headers={"authorization": f"Bearer {server.token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return msgspec.json.decode(response.read(), type=_Page)


def list_all(server: Server) -> int:
    count, after = 0, ""
    while True:
        listed = page(server, after)
        count += len(listed.streams)
        if listed.next_after is None:
            return count
        after = listed.next_after


# The attacks


def lists(scene: Scene) -> None:
    """Pages of a list of many streams that are not folded yet, at four places at a time."""
    count = scene.streams // 5
    create_many(scene, "many/", count)
    until_s = time.monotonic() + ATTACK_S

    def ask(number: int) -> None:
        turn = number
        while time.monotonic() < until_s:
            page(scene.server, f"many/{turn * 7919 % count:07d}", 1000 if number % 2 else 1)
            turn += 1

    at_once(4, ask)


def lists_that_match_nothing(scene: Scene) -> None:
    """Lists of callers whose globs match none of many streams, twenty at a time."""
    create_many(scene, "many/", scene.streams // 5)
    until_s = time.monotonic() + ATTACK_S

    def ask(_: int) -> None:
        after: str | None = ""
        while time.monotonic() < until_s:
            listed = page(scene.scoped, after or "")
            after = listed.next_after
            if listed.streams:
                scene.broken.append("a stream was listed that no glob matches")

    at_once(20, ask)


def expiring_together(scene: Scene) -> None:
    """Many streams that expire at the same time."""
    count = scene.streams * 3 // 100
    together = datetime.now(UTC) + timedelta(seconds=5 + count / CREATED_PER_S_MIN)
    create_many(scene, "short/", count, b"x", f"stream-expires-at: {together:%Y-%m-%dT%H:%M:%SZ}")
    if datetime.now(UTC) >= together:
        scene.broken.append(f"creates: fewer than {CREATED_PER_S_MIN} a second")
    time.sleep(max(0.0, (together - datetime.now(UTC)).total_seconds()))
    began_s = time.monotonic()
    scene.wait("all streams expired", lambda: scene.metric("headwater_streams") < count // 20 + 100)
    per_s = count / (time.monotonic() - began_s)
    scene.notes.append(f"{per_s:,.0f} streams expired per second")
    if per_s < EXPIRED_PER_S_MIN:
        scene.broken.append(f"expiry: {per_s:,.0f} a second")


def many_producers(scene: Scene) -> None:
    """New producers with long ids on one stream."""
    put(scene.server, "produced", "text/plain")

    def request(number: int) -> bytes:
        lines = ("content-type: text/plain", "content-length: 1", "producer-epoch: 0", "producer-seq: 0")
        return head(scene.server, "POST", "produced", *lines, f"producer-id: {number:010d}{'p' * 1000}") + b"x"

    statuses = pipelined(scene, scene.streams // 5, request)
    scene.notes.append(f"answers: {statuses}")
    _expect(scene, "appends of producers", statuses, 200, 413)


def bodies_in_tiny_chunks(scene: Scene) -> None:
    """Bodies of 16 MiB in chunks of two bytes, of three callers without a token."""
    chunks = b"2\r\nab\r\n" * 8192

    def upload(_: int) -> None:
        with connect(scene.stranger) as sock:
            send(sock, head(scene.stranger, "POST", "x", "content-type: text/plain", "transfer-encoding: chunked"))
            for _ in range(1023):
                if not send(sock, chunks):
                    return
            time.sleep(2)

    at_once(3, upload)


def bodies_without_a_token(scene: Scene) -> None:
    """Unfinished bodies of callers without a token, which must not stop the writes of others."""
    put(scene.server, "written", "text/plain")
    size = 16 * MIB
    with many(scene.stranger, 77) as socks:
        for number, sock in enumerate(socks):
            sock.settimeout(2)
            length = f"content-length: {size}"
            start = head(scene.stranger, "POST", "x", "content-type: text/plain", length)
            send(sock, start + b"x" * (15 * MIB if number < 17 else 60_000))
        for _ in range(10):
            status = post(scene.server, "written", "text/plain", b"x" * 300_000)
            if status >= 300:
                scene.broken.append(f"an append of 300 kB got {status}")
                break
            time.sleep(0.2)


def life_of_many_streams(scene: Scene) -> None:
    """All streams of the run: create, list, expire a quarter, delete half, and the disk space returns."""
    quarter = scene.streams // 4
    began_s = time.monotonic()
    with scene.timed("create three quarters"):
        create_many(scene, "kept/", quarter, b"x" * 64)
        create_many(scene, "gone/", 2 * quarter, b"x" * 64)
    with scene.timed("list them"):
        if (listed := list_all(scene.server)) < 3 * quarter:
            scene.broken.append(f"{listed:,} of {3 * quarter:,} streams are in the list")
    ttl_s = max(20, int(time.monotonic() - began_s))
    with scene.timed("create the last quarter"):
        create_many(scene, "short/", quarter, b"x" * 64, f"stream-ttl: {ttl_s}")
    with scene.timed("list all"):
        list_all(scene.server)
    with scene.timed("expire a quarter"):
        scene.wait("a quarter expired", lambda: scene.metric("headwater_streams") < 3 * quarter + 100)
    with scene.timed("fold them"):  # before, the index may be almost empty
        scene.wait("folded", lambda: 3 * quarter <= scene.folded()[0] < 3 * quarter + 100)
    largest_bytes = scene.disk_bytes()
    with scene.timed("delete half"):
        delete_many(scene, "gone/", 2 * quarter)
    with scene.timed("list the rest"):
        if (listed := list_all(scene.server)) > quarter + 100:
            scene.broken.append(f"{listed:,} streams are in the list, {quarter:,} are left")
    with scene.timed("disk space returns"):
        scene.wait("deletions folded", lambda: scene.folded()[0] < quarter + 100 and not scene.folded()[1])
        scene.wait("disk space returned", lambda: scene.disk_bytes() < DISK_SHARE_MAX * largest_bytes)
    scene.notes.append(f"disk: {largest_bytes / MIB:,.0f} MiB, then {scene.disk_bytes() / MIB:,.0f} MiB")


ATTACKS: dict[str, Callable[[Scene], None]] = {
    "bodies in tiny chunks": bodies_in_tiny_chunks,
    "bodies without a token": bodies_without_a_token,
    "lists": lists,
    "lists, nothing matches": lists_that_match_nothing,
    "expiring together": expiring_together,
    "many producers": many_producers,
    "life of many streams": life_of_many_streams,
}
