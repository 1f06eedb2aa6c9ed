"""Large appends, records and forks. `bench/bounds_bench.py` measures how long they hold the event loop, and memory."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from headwater.engine import preparing
from headwater.limits import Limits
from headwater.log.commands import Append, FramedBody
from tests.metrics import metric
from tests.servers import Server, serving
from tests.waiting import wait_for, wait_until

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
LARGE = 16 * 1024 * 1024
ACCEPTED = "headwater_http_accepted_connections_total"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving(Limits()) as server:
        yield server


@pytest.fixture
def client(running: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{running.url}/{uuid.uuid4().hex}/", timeout=60) as client:
        yield client


def feed(server: Server, path: str, cursor: str = "") -> socket.socket:
    sock = socket.create_connection((server.host, server.port), timeout=60)
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
def test_a_large_text_record_as_an_event(running: Server, client: httpx.Client, text: bytes) -> None:
    client.put("t", headers=TEXT, content=text * (LARGE // len(text)))
    with contextlib.closing(feed(running, client.base_url.path + "t")) as sock:
        assert received(sock, CONTROL_END) > LARGE


@pytest.mark.slow
def test_many_readers_with_cursors_of_their_own(running: Server, client: httpx.Client) -> None:
    client.put("t", headers=TEXT)
    path = client.base_url.path + "t"
    with contextlib.ExitStack() as stack:
        feeds = [
            stack.enter_context(contextlib.closing(feed(running, path, str(10**10 + number)))) for number in range(40)
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


def ones(count: int) -> bytes:
    return b"[" + b"1," * (count - 1) + b"1]"


def test_a_json_append_of_eight_million_messages(client: httpx.Client) -> None:
    client.put("j", headers=JSON)
    for method in ("POST", "PUT"):
        refused = client.request(method, "j" if method == "POST" else "k", headers=JSON, content=ones(LARGE // 2 - 1))
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:headwater:too-many-messages")
        assert "1000000" in refused.json()["detail"]
    assert client.get("j").content == b"[]"


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
def test_a_large_json_append(client: httpx.Client, body: bytes) -> None:
    client.put("j", headers=JSON)
    assert client.post("j", headers=JSON, content=body).status_code == 204
    assert client.get("j").content == body


@pytest.mark.slow
def test_a_fork_with_a_sub_offset_into_a_large_record(client: httpx.Client) -> None:
    client.put("j", headers=JSON)
    body = ones(1_000_000)
    assert client.post("j", headers=JSON, content=body).status_code == 204
    fork = {"stream-forked-from": f"{client.base_url.path}j", "stream-fork-offset": "-1"}
    assert client.put("f", headers={**fork, "stream-fork-sub-offset": "999999"}).status_code == 201
    assert client.put("g", headers={**fork, "stream-fork-sub-offset": "1000001"}).status_code == 400
    assert client.get("f").content == ones(999_999)


def test_the_appends_of_a_producer_stay_in_order(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one is validated off the loop; a small one after it must not overtake it."""
    framing, go_on = threading.Event(), threading.Event()
    frame = preparing._frame

    def slow(command: Append, messages_max: int) -> FramedBody:
        framing.set()
        assert go_on.wait(60)
        return frame(command, messages_max)

    monkeypatch.setattr(preparing, "_frame", slow)
    client.put("j", headers=JSON)

    def send(seq: int, body: bytes) -> int:
        producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(seq)}
        return client.post("j", headers={**JSON, **producer}, content=body).status_code

    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(send, 0, ones(900_000))
        assert framing.wait(60)
        accepted = metric(client, ACCEPTED)
        small = pool.submit(send, 1, b"2")
        wait_until(lambda: metric(client, ACCEPTED) > accepted)
        assert not small.done()
        go_on.set()
        assert (large.result(), small.result()) == (200, 200)
    assert client.get("j").content.endswith(b"1,2]")


def test_the_limit_holds_for_small_bodies_too() -> None:
    with serving(Limits(messages_per_append_max=10)) as server, httpx.Client(base_url=server.url) as client:
        assert client.put("/a", headers=JSON, content=ones(10)).status_code == 201
        assert client.post("/a", headers=JSON, content=ones(10)).status_code == 204
        for refused in (
            client.post("/a", headers=JSON, content=ones(11)),
            client.put("/b", headers=JSON, content=ones(11)),
        ):
            assert (refused.status_code, refused.json()["type"]) == (413, "urn:headwater:too-many-messages")


@pytest.mark.slow
def test_a_large_record_is_read_although_many_do_not_take_it(client: httpx.Client) -> None:
    client.put("t", headers=TEXT, content=b"x" * LARGE)
    with contextlib.ExitStack() as stack:
        for number in range(60):
            stack.enter_context(contextlib.closing(unread(client, "t", "&live=sse" if number % 2 else "")))
        assert client.get("t").content == b"x" * LARGE


def unread(client: httpx.Client, name: str, more: str = "") -> socket.socket:
    """A connection that has requested a stream and read one byte of the response."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect((client.base_url.host, client.base_url.port or 80))
    path = f"{client.base_url.path}{name}?offset=-1{more}"
    sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert sock.recv(1)
    return sock


@pytest.mark.slow
def test_large_records_that_nobody_takes_are_bounded(client: httpx.Client) -> None:
    for number in range(12):
        client.put(f"t{number}", headers=TEXT, content=b"x" * LARGE)
    with contextlib.ExitStack() as stack:
        for number in range(12):  # 192 MiB, of which 128 may wait
            stack.enter_context(contextlib.closing(unread(client, f"t{number}")))
        refused = client.get("t11")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("t0").content == b"x" * LARGE  # it is in memory anyway
        assert client.get(f"{client.base_url}none").status_code == 404
    wait_for(lambda: client.get("t11").status_code, 200)
    assert client.get("t11").content == b"x" * LARGE
