"""No request holds the event loop: everyone else waits behind it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bench.servers import Server

from headwater.limits import Limits
from tests.stalls import Stall, watched

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
LARGE = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Server, Stall]]:
    with watched() as found:
        yield found


@pytest.fixture
def client(running: tuple[Server, Stall]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{running[0].url}/{uuid.uuid4().hex}/", timeout=60) as client:
        yield client


@pytest.fixture
def stall(running: tuple[Server, Stall], client: httpx.Client) -> Stall:
    running[1].reset()
    return running[1]


def feed(server: Server, path: str, cursor: str = "") -> socket.socket:
    sock = socket.create_connection((server.host, server.port), timeout=30)
    query = f"offset=-1&live=sse{f'&cursor={cursor}' if cursor else ''}"
    sock.sendall(f"GET {path}?{query} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
    return sock


def received(sock: socket.socket, ending: bytes) -> int:
    """How many bytes arrive until some that end with these."""
    count, last = 0, b""
    while not last.endswith(ending):
        chunk = sock.recv(1 << 20)
        assert chunk, f"the feed ended after {count} bytes"
        count += len(chunk)
        last = (last + chunk)[-len(ending) :]
    return count


CONTROL_END = b'"upToDate":true}\n\n'


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"\n", b"\r", b"\n ", b"\r\n", b"x"])
def test_a_large_text_record_as_an_event(
    running: tuple[Server, Stall], client: httpx.Client, stall: Stall, text: bytes
) -> None:
    client.put("t", headers=TEXT, content=text * (LARGE // len(text)))
    with contextlib.closing(feed(running[0], client.base_url.path + "t")) as sock:
        assert received(sock, CONTROL_END) > LARGE
    stall.check()


@pytest.mark.slow
def test_many_readers_with_cursors_of_their_own(
    running: tuple[Server, Stall], client: httpx.Client, stall: Stall
) -> None:
    client.put("t", headers=TEXT)
    path = client.base_url.path + "t"
    with contextlib.ExitStack() as stack:
        feeds = [
            stack.enter_context(contextlib.closing(feed(running[0], path, str(10**10 + number))))
            for number in range(40)
        ]
        for sock in feeds:
            received(sock, b"\n\n")
        counts: list[int] = []
        readers = [threading.Thread(target=lambda s=sock: counts.append(received(s, CONTROL_END))) for sock in feeds]
        for reader in readers:
            reader.start()
        client.post("t", headers=TEXT, content=b"x" * LARGE)
        for reader in readers:
            reader.join()
    assert len(counts) == 40
    assert min(counts) > LARGE
    stall.check()


def ones(count: int) -> bytes:
    return b"[" + b"1," * (count - 1) + b"1]"


def test_a_json_append_of_eight_million_messages(client: httpx.Client, stall: Stall) -> None:
    client.put("j", headers=JSON)
    for method in ("POST", "PUT"):
        refused = client.request(method, "j" if method == "POST" else "k", headers=JSON, content=ones(LARGE // 2 - 1))
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:headwater:too-many-messages")
        assert "1000000" in refused.json()["detail"]
    assert client.get("j").content == b"[]"
    stall.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        ones(1_000_000),
        b'[["' + b"x" * (LARGE - 10) + b'"]]',
        b"[[" + b"1," * (LARGE // 2 - 4) + b"1]]",
        b"[" + b'{"a":{"b":1},"c":[2,3]},' * (LARGE // 24 - 2) + b"4]",
        '["é'.encode() + "ü".encode() * (LARGE // 2 - 10) + b'"]',
    ],
    ids=["many", "string", "nested", "objects", "utf-8"],
)
def test_a_large_json_append(client: httpx.Client, stall: Stall, body: bytes) -> None:
    client.put("j", headers=JSON)
    stall.reset()
    assert client.post("j", headers=JSON, content=body).status_code == 204
    stall.check()
    assert client.get("j").content == body


@pytest.mark.slow
def test_a_fork_with_a_sub_offset_into_a_large_record(client: httpx.Client, stall: Stall) -> None:
    client.put("j", headers=JSON)
    body = ones(1_000_000)
    assert client.post("j", headers=JSON, content=body).status_code == 204
    stall.reset()
    fork = {"stream-forked-from": f"{client.base_url.path}j", "stream-fork-offset": "-1"}
    assert client.put("f", headers={**fork, "stream-fork-sub-offset": "999999"}).status_code == 201
    assert client.put("g", headers={**fork, "stream-fork-sub-offset": "1000001"}).status_code == 400
    stall.check()
    assert client.get("f").content == ones(999_999)


def test_the_appends_of_a_producer_stay_in_order(client: httpx.Client) -> None:
    """A large one is validated off the loop; a small one after it must not overtake it."""
    client.put("j", headers=JSON)
    limits = httpx.Limits(max_connections=2)
    with httpx.Client(base_url=client.base_url, timeout=60, limits=limits) as other:
        statuses = {}

        def send(sender: httpx.Client, seq: int, body: bytes) -> None:
            producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(seq)}
            statuses[seq] = sender.post("j", headers={**JSON, **producer}, content=body).status_code

        large = threading.Thread(target=send, args=(client, 0, ones(900_000)))
        large.start()
        time.sleep(0.05)
        send(other, 1, b"2")
        large.join()
    assert statuses == {0: 200, 1: 200}
    assert client.get("j").content.endswith(b"1,2]")


def test_the_limit_holds_for_small_bodies_too() -> None:
    with watched(Limits(messages_per_append_max=10)) as (server, _), httpx.Client(base_url=server.url) as client:
        assert client.put("/a", headers=JSON, content=ones(10)).status_code == 201
        assert client.post("/a", headers=JSON, content=ones(10)).status_code == 204
        for refused in (
            client.post("/a", headers=JSON, content=ones(11)),
            client.put("/b", headers=JSON, content=ones(11)),
        ):
            assert (refused.status_code, refused.json()["type"]) == (413, "urn:headwater:too-many-messages")


@pytest.mark.slow
def test_a_large_record_is_in_memory_once_however_many_read_it(client: httpx.Client, stall: Stall) -> None:
    client.put("t", headers=TEXT, content=b"x" * LARGE)
    path = client.base_url.path + "t"
    address = (client.base_url.host, client.base_url.port or 80)
    stall.reset()
    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        for number in range(60):  # none of them reads
            sock = stack.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            live = "&live=sse" if number % 2 else ""
            sock.sendall(f"GET {path}?offset=-1{live} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        time.sleep(1)
        assert resident_bytes() - before < 10 * LARGE  # of 60
        assert client.get("t").content == b"x" * LARGE
    stall.check()


@pytest.mark.slow
def test_large_records_that_nobody_takes_are_bounded(client: httpx.Client) -> None:
    for number in range(12):
        client.put(f"t{number}", headers=TEXT, content=b"x" * LARGE)
    address = (client.base_url.host, client.base_url.port or 80)
    with contextlib.ExitStack() as stack:
        for number in range(12):  # 192 MiB, of which 128 may wait
            sock = stack.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            sock.sendall(f"GET {client.base_url.path}t{number}?offset=-1 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        time.sleep(1)
        refused = client.get("t11")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("t0").content == b"x" * LARGE  # it is in memory anyway
        assert client.get(f"{client.base_url}none").status_code == 404
    time.sleep(0.5)
    assert client.get("t11").content == b"x" * LARGE


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc: is this Linux?")
