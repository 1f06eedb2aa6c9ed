"""A browser, and a web server for the pages it shows."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
from collections.abc import Iterator
from typing import Any

from bench.browser import Browser, NoBrowserError, open_browser

from tests.programs import missing

__all__ = ["Browser", "browser", "gateway", "serving", "website"]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as opened:
        try:
            chromium = opened.enter_context(open_browser())
        except NoBrowserError:
            missing("chromium")
        yield chromium


class _Page(http.server.BaseHTTPRequestHandler):
    body = b"<!doctype html><title>A page</title><iframe name=hidden></iframe>"

    def do_GET(self) -> None:
        body = self.body
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def website(page: str | None = None) -> Iterator[int]:
    """A page, or an empty one, on a port of this machine, under every path and every name."""
    handler = _Page if page is None else type("_GivenPage", (_Page,), {"body": page.encode()})
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield server.server_port


@contextlib.contextmanager
def serving(server: http.server.ThreadingHTTPServer) -> Iterator[http.server.ThreadingHTTPServer]:
    """Answer requests in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Gateway(http.server.ThreadingHTTPServer):
    """A proxy for GET in front of a server. While `is_broken`, it ends responses and answers 502, as it does when the
    server restarts."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.target = port
        self.is_broken = False
        self.refused = 0


class _Forward(_Page):
    def do_GET(self) -> None:
        gateway = self.server
        assert isinstance(gateway, Gateway)
        if gateway.is_broken:
            gateway.refused += 1
            self.send_error(502)
            return
        connection = http.client.HTTPConnection("127.0.0.1", gateway.target)
        names = ("accept", "origin", "last-event-id")
        connection.request(
            "GET", self.path, headers={name: self.headers[name] for name in names if name in self.headers}
        )
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not gateway.is_broken and (chunk := answer.read1(65536)):
                self.wfile.write(chunk)
        connection.close()


@contextlib.contextmanager
def gateway(port: int) -> Iterator[Gateway]:
    with serving(Gateway(port)) as running:
        assert isinstance(running, Gateway)
        yield running
