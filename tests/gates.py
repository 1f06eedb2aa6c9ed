"""A gate before a server, on loopback: it terminates TLS if asked to, lets some tokens in, and notes the headers."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.servers import Server

_NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding", "host")


class Gate:
    def __init__(self, port: int, *, tls: bool) -> None:
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1/stream"
        self.tokens: set[str] | None = None  # None: all may pass
        self.seen: list[dict[str, str]] = []  # the headers of requests
        self.refused = 0


@contextlib.contextmanager
def gate(server: Server, context: ssl.SSLContext | None = None) -> Iterator[Gate]:
    with httpx.Client(transport=httpx.HTTPTransport(verify=False), timeout=60) as http:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                running.seen.append(headers)
                if running.tokens is not None and headers.get("authorization") not in {
                    f"Bearer {t}" for t in running.tokens
                }:
                    running.refused += 1
                    reply = httpx.Response(401)
                else:
                    passed = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
                    url = f"http://{server.host}:{server.port}{self.path}"
                    reply = http.request(self.command, url, headers=passed, content=body)
                self.send_response_only(reply.status_code)
                for name, value in reply.headers.items():
                    if name not in (*_NOT_PASSED_ON, "content-encoding"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(reply.content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.content)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, *message: object) -> None:
                """Say nothing."""

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *where: object) -> None:
                """Handshakes that fail are what some tests are about."""

            def finish_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
                if context is not None:
                    request = context.wrap_socket(request, server_side=True)
                with contextlib.closing(request):
                    super().finish_request(request, client_address)

        with Listener(("127.0.0.1", 0), Handler) as listening:
            running = Gate(listening.server_address[1], tls=context is not None)
            thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield running
            finally:
                listening.shutdown()
                thread.join()
