"""A receiver of Notify POSTs on loopback, which answers as it is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.metrics import metric
from tests.waiting import wait_until


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, str, bytes]] = []  # path, content type and body of each POST
        self.headers: list[dict[str, str]] = []  # of each POST, names in lower case
        self.statuses: list[int] = []  # of the next answers; 204 when there are no more
        self.hold = threading.Event()  # answers are given while it is set
        self.hold.set()
        self.now = 0
        self.most = 0  # at a time

    def nurl(self, path: str = "/nurl") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def wait(self, count: int) -> list[tuple[str, str, bytes]]:
        """Wait until so many POSTs have arrived, and return them all."""
        wait_until(lambda: len(self.received) >= count, f"{count} POSTs")
        return self.received

    def assert_received(self, count: int, server: httpx.Client) -> None:
        """So many POSTs arrived, and the server that sends them has no more to send."""

        def nurls(state: str) -> float | None:
            with contextlib.suppress(LookupError):  # one of several servers does not send any
                return metric(server, "headwater_notify_nurls", state=state)
            return None

        for state in ("sending", "waiting"):
            wait_until(lambda state=state: nurls(state) == 0, f"no NURL is {state}")  # type: ignore[misc]
        assert len(self.received) == count, self.received


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        server = self.server
        server.now += 1
        server.most = max(server.most, server.now)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        server.received.append((self.path, self.headers["content-type"], body))
        server.hold.wait()
        status = server.statuses.pop(0) if server.statuses else 204
        server.now -= 1
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", server.nurl("/elsewhere"))
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
