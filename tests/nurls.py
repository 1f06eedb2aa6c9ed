"""A receiver of Notify POSTs on loopback, which answers as it is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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

    def wait(self, count: int, within_s: float = 10.0) -> list[tuple[str, str, bytes]]:
        deadline = time.monotonic() + within_s
        while len(self.received) < count:
            assert time.monotonic() < deadline, f"{len(self.received)} of {count} POSTs came"
            time.sleep(0.01)
        return self.received

    def quiet(self, count: int, for_s: float = 0.4) -> None:
        """No more than so many POSTs came, and no more come."""
        time.sleep(for_s)
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
        server.hold.wait(10)
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
