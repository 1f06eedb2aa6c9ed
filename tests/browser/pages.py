"""A browser, and a web server for the pages it shows."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.servers import NODE_DIR

_NO_BROWSER = 3


class Browser:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def open(self, page: str, url: str, context: str | None = None) -> int:
        """Show a URL in a page of that name; the status of its answer. Pages of a context are tabs of one browser."""
        return int(self._ask(page=page, context=context or page, goto=url))

    def close(self, page: str) -> None:
        self._ask(page=page, close="now")

    def run(self, page: str, script: str) -> Any:
        """What an expression of JavaScript comes to, promises awaited."""
        return self._ask(page=page, run=script)

    def screenshot(self, page: str, path: Path) -> None:
        """What the page looks like, as a PNG file."""
        self._ask(page=page, screenshot=str(path))

    def act(self, page: str, name: str, **more: Any) -> Any:
        """Do something as a person would; `ACTS` in `tests/node/browser.mjs` lists what there is."""
        return self._ask(page=page, act=name, **{"with": more})

    def _ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()["result"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the browser ended"
        found: dict[str, Any] = json.loads(line)
        assert "error" not in found, found["error"]
        return found

    def ready(self) -> None:
        found = self._answer()
        if "missing" in found:
            pytest.skip(f"no browser: {found['missing']}; set HEADWATER_BROWSER, or run this through `make test`")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    node = shutil.which("node")
    assert node is not None, "Node is needed: run this through `make test`"
    if not (NODE_DIR / "node_modules" / "playwright-core").exists():
        pytest.skip("playwright-core is not installed: run this through `make test`")
    process = subprocess.Popen(
        [node, "browser.mjs"], cwd=NODE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        found = Browser(process)
        found.ready()
        yield found
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


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
    with _serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield server.server_port


@contextlib.contextmanager
def _serving(server: http.server.ThreadingHTTPServer) -> Iterator[http.server.ThreadingHTTPServer]:
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
    with _serving(Gateway(port)) as found:
        assert isinstance(found, Gateway)
        yield found
