"""A server that answers what a test says and remembers what it was asked, and a terminal of some width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.waiting import LIMIT_S

HEADWATER = Path(sys.executable).parent / "headwater"
Answer = tuple[int, dict[str, str], bytes]


class Stub:
    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[tuple[str, str, dict[str, str]]] = []  # method, path, headers


@contextlib.contextmanager
def stub_server(answer: Callable[[str, str], Answer]) -> Iterator[Stub]:
    """Every request is answered with what the function makes of its method and path."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            fields = {name.lower(): value for name, value in self.headers.items()}
            stub.seen.append((self.command, self.path, fields))
            status, headers, body = answer(self.command, self.path)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_one)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub = Stub(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()


def on_terminal(columns: int, *arguments: str, url: str, **environment: str) -> tuple[int, str]:
    """The exit code of a command on a terminal of so many columns, and all that the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [HEADWATER, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm", "HEADWATER_URL": url, **environment},
    ) as process:
        os.close(theirs)
        got = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(ours, 65_536):
                got += piece
        os.close(ours)
        code = process.wait(LIMIT_S)
    return code, got.decode().replace("\r\n", "\n")
