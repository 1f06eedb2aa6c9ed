"""The tools of an attacker (`bench.hostile`): connections and requests that no honest client makes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from bench.servers import Server

MIB = 1024 * 1024


def authorization(server: Server) -> list[str]:
    """The header lines with the token of the caller, if there is one."""
    return [f"authorization: Bearer {server.token}"] if server.token else []


def connect(server: Server, *, receive_bytes: int = 0) -> socket.socket:
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(20)
    sock.connect((server.host, server.port))
    return sock


def head(server: Server, method: str, path: str, *more: str) -> bytes:
    lines = [
        f"{method} /v1/stream/{path} HTTP/1.1",
        f"host: {server.host}:{server.port}",
        *authorization(server),
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def send(sock: socket.socket, data: bytes) -> bool:
    """Send data. False if the server closed the connection."""
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def put(server: Server, path: str, content_type: str, body: bytes = b"", *more: str) -> int:
    with connect(server) as sock:
        length = f"content-length: {len(body)}"
        if not send(sock, head(server, "PUT", path, f"content-type: {content_type}", length, *more) + body):
            return 0
        return status_of(sock)


def post(server: Server, path: str, content_type: str, body: bytes) -> int:
    with connect(server) as sock:
        send(sock, head(server, "POST", path, f"content-type: {content_type}", f"content-length: {len(body)}") + body)
        return status_of(sock)


def status_of(sock: socket.socket) -> int:
    try:
        answer = sock.recv(65536)
    except OSError:
        return 0
    return int(answer.split(b" ", 2)[1]) if answer else 0


def at_once(count: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def many(server: Server, count: int, **options: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(connect(server, **options))) for _ in range(count)]


def hang_up(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def drain(sock: socket.socket, ending: bytes, for_s: float = 20.0) -> int:
    """Read until the received data ends with these bytes."""
    count, last, until_s = 0, b"", time.monotonic() + for_s
    while not last.endswith(ending) and time.monotonic() < until_s:
        try:
            chunk = sock.recv(1 << 20)
        except OSError:
            break
        if not chunk:
            break
        count += len(chunk)
        last = (last + chunk)[-len(ending) :]
    return count
