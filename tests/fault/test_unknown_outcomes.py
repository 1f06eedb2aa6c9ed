"""A server loses the database in the middle of a commit, and cannot ask it what became of the batch."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest
from bench.servers import Server, headwater

from tests.postgres import postgres
from tests.waiting import LIMIT_S, wait_until

TEXT = {"content-type": "text/plain"}
PRODUCER = {**TEXT, "producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
pytestmark = pytest.mark.slow


class Link:
    """Between a server and PostgreSQL. It can lose what one side sends to the other, and be cut, so that nobody can
    connect until it is mended."""

    def __init__(self, port: int) -> None:
        self._database = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self.loses_requests = False
        self.loses_answers = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                database = socket.create_connection(("127.0.0.1", self._database))
                self._open |= {client, database}
                for one, other, is_request in ((client, database, True), (database, client, False)):
                    threading.Thread(target=self._pass_on, args=(one, other, is_request), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if not (self.loses_requests if is_request else self.loses_answers):
                    other.sendall(data)
        self._close({one, other})

    def _close(self, sockets: set[socket.socket]) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open -= sockets

    def cut(self) -> None:
        self._is_cut = True
        self._close(set(self._open))

    def mend(self) -> None:
        self._is_cut = self.loses_requests = self.loses_answers = False

    def close(self) -> None:
        self.cut()
        self._listener.close()


@contextlib.contextmanager
def two_servers() -> Iterator[tuple[Server, Server, Link]]:
    """Two servers that share a database, of which the first one has a link to it."""
    url = postgres().new_database()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    link = Link(int(str(parts["port"])))
    cut_url = url.replace(f":{parts['port']}/", f":{link.port}/") + "?sslmode=disable&gssencmode=disable"
    try:
        with headwater("--store", cut_url) as first, headwater("--store", url) as second:
            yield first, second, link
    finally:
        link.close()


def post(server: Server, name: str, content: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(f"{server.url}/{name}", headers=headers, content=content, timeout=LIMIT_S)


def problem(answer: httpx.Response) -> tuple[int, str, str | None]:
    kind = str(answer.json()["type"]).removeprefix("urn:headwater:")
    return answer.status_code, kind, answer.headers.get("retry-after")


@pytest.mark.parametrize("is_stored", [True, False])
def test_writes_get_503_until_their_outcome_is_known(is_stored: bool) -> None:
    with two_servers() as (first, second, link), ThreadPoolExecutor() as threads:
        for name in "ab":
            assert httpx.put(f"{first.url}/{name}", headers=TEXT).status_code == 201
        if is_stored:
            link.loses_answers = True
        else:
            link.loses_requests = True
        append = threads.submit(post, first, "a", "x", PRODUCER)
        if is_stored:
            wait_until(lambda: httpx.get(f"{second.url}/a").text == "x", "the batch is stored")
        else:
            wait_until(lambda: httpx.get(f"{first.url.partition('/v1')[0]}/readyz").status_code == 503)
        link.cut()
        assert problem(append.result()) == (503, "outcome-pending", "1")
        # As long as nobody knows it, nothing else is accepted, nor stored later.
        assert problem(post(first, "b", "refused", TEXT)) == (503, "unavailable", "1")
        assert problem(httpx.delete(f"{first.url}/b")) == (503, "unavailable", "1")
        assert problem(post(first, "a", "x", PRODUCER)) == (503, "unavailable", "1")
        # The other server has the database, and recognises the producer.
        again = post(second, "a", "x", PRODUCER)
        assert again.status_code == (204 if is_stored else 200)
        link.mend()
        wait_until(lambda: post(first, "b", "y", TEXT).status_code == 204, "the server knows it")
        assert post(first, "a", "x", PRODUCER).status_code == 204  # it is a duplicate
        for server in (first, second):
            assert httpx.get(f"{server.url}/a").text == "x"
            assert httpx.get(f"{server.url}/b").text == "y"
