"""A client that sends exactly the bytes it is given."""

from __future__ import annotations

import json
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from bench.servers import Server


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        value: dict[str, Any] = json.loads(self.body)
        assert value["status"] == self.status
        assert value["title"]
        assert value["detail"]
        return value


class _Tls(ssl.SSLSocket):
    def shutdown(self, how: int) -> None:
        """Shut down the TCP socket. The method of the TLS class would shut down TLS."""
        with socket.socket(fileno=os.dup(self.fileno())) as below:
            below.shutdown(how)


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE
_CONTEXT.sslsocket_class = _Tls


class Wire:
    def __init__(self, server: Server, timeout_s: float = 60.0) -> None:
        self.sock = socket.create_connection((server.host, server.port), timeout=timeout_s)
        if server.scheme == "https":
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a record is a write
            self.sock = _CONTEXT.wrap_socket(self.sock)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        line = self._file.readline()
        if not line:
            raise EOFError("the server closed the connection")
        headers: dict[str, str] = {}
        while (header := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers

    def answer(self, *, head_only: bool = False) -> Answer:
        status, headers = self.head()
        body = b""
        if not head_only and status not in (204, 304) and status >= 200:
            body = self._file.read(int(headers["content-length"]))
        return Answer(status, headers, body)

    def chunk(self) -> bytes:
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        self._file.readline()
        return data

    def at_end(self) -> bool:
        """Whether the server closes the connection without sending anything more."""
        return self._file.read(1) == b""

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
        if body or method in ("PUT", "POST"):
            lines.append(f"content-length: {len(body)}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return self.answer(head_only=method == "HEAD")
