"""Writes responses, and detects clients that do not read them."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from headwater.limits import RESPONSE_JOIN_BYTES_MAX, Limits
from headwater.server.budgets import Budget, Share
from headwater.server.http import COMMON_HEADERS, Frame, Response
from headwater.server.observing.observer import Observer

_COMMON = "".join(f"{name}: {value}\r\n" for name, value in COMMON_HEADERS)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_BODILESS = frozenset({204, 304})


def _nothing() -> None:
    """The callback after the last response."""


class ResponseHeads:
    """Status lines and headers. The common part of all responses with a status is cached until the date changes."""

    def __init__(self) -> None:
        self._date = ""
        self._shared: dict[int, bytes] = {}

    def renew_date(self) -> None:
        self._date = formatdate(usegmt=True)
        self._shared.clear()

    def encode(self, response: Response, last: str) -> bytes:
        """The head of a response; `last` is what follows its own headers."""
        shared = self._shared.get(response.status)
        if shared is None:
            phrase = HTTPStatus(response.status).phrase
            shared = f"HTTP/1.1 {response.status} {phrase}\r\ndate: {self._date}\r\n{_COMMON}".encode()
            self._shared[response.status] = shared
        own = ""
        for name, value in response.headers:
            own += f"{name}: {value}\r\n"
        return shared + f"{own}{last}".encode("latin-1")


class Outlet(Protocol):
    """The interface of the edge that a writer uses."""

    limits: Limits
    heads: ResponseHeads
    responses: Budget
    observer: Observer


class ResponseWriter:
    """Writes to one transport and watches whether the client reads."""

    __slots__ = (
        "_chunked",
        "_heads",
        "_left_bytes",
        "_limits",
        "_observer",
        "_on_end",
        "_stalled_s",
        "_transport",
        "_unread",
        "_write",
        "blocked",
    )

    def __init__(self, transport: asyncio.Transport, outlet: Outlet, on_end: Callable[[], None]) -> None:
        self._transport = transport
        self._write = transport.write
        self._on_end = on_end  # called after the last frame of a response that stayed open
        self._chunked = True  # whether its body is written in chunks
        self._heads = outlet.heads
        self._limits = outlet.limits
        self._observer = outlet.observer
        self._unread = Share(outlet.responses)
        self._left_bytes = 0  # what the client had not taken at the last check, including the kernel's buffer
        self._stalled_s = 0.0  # deadline for the client to read more
        self.blocked = False  # the transport is full

    def write_response(self, response: Response, *, head_only: bool, keep_alive: bool) -> None:
        body = response.body
        last = "\r\n" if keep_alive else "connection: close\r\n\r\n"
        if response.status not in _BODILESS:
            size = sum(map(len, body))
            last = f"content-length: {size}\r\n{last}"
        head = self._heads.encode(response, last)
        if head_only or not body:
            self._write(head)
            return
        self._observer.sent_bytes += size
        if size <= RESPONSE_JOIN_BYTES_MAX:
            self._write(b"".join((head, *body)))
        else:
            self._transport.writelines((head, *body))

    def write_continue(self) -> None:
        self._write(_CONTINUE)

    # A body of unknown length: this is the sink of a feed. HTTP/1.0 clients get it without chunks, and it ends with the
    # connection.

    def begin_body(self, response: Response, *, chunked: bool, keep_alive: bool) -> None:
        last = "\r\n" if keep_alive else "connection: close\r\n\r\n"
        if chunked:
            last = f"transfer-encoding: chunked\r\n{last}"
        self._chunked = chunked
        self._write(self._heads.encode(response, last))

    def write(self, frame: Frame) -> None:
        data = (frame.chunk or frame.make_chunk()) if self._chunked else frame.body
        self._observer.sent_bytes += len(data)
        self._write(data)

    def end(self) -> None:
        if self._chunked:
            self._write(_LAST_CHUNK)
        self._on_end()

    def abort(self) -> None:
        self._transport.abort()

    def write_eof(self) -> None:
        """Close the sending side; the client may still send."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # Clients that do not read

    def pause(self, now_s: float) -> None:
        self.blocked = True
        self.watch(now_s)

    def resume(self) -> None:
        self.blocked = False
        self._unread.hold(self._transport.get_write_buffer_size())

    def watch(self, now_s: float) -> None:
        """Start to watch whether the client reads."""
        unread_bytes = self._transport.get_write_buffer_size()
        self._unread.hold(unread_bytes)
        self._left_bytes = unread_bytes + self._queued_bytes() if unread_bytes else 0
        self._stalled_s = now_s + self._limits.write_stall_s

    def stalled(self, now_s: float) -> bool:
        """Whether the client has read nothing for too long. A slow client is allowed."""
        unread_bytes = self._transport.get_write_buffer_size()
        if unread_bytes != self._unread.held_bytes:
            self._unread.hold(unread_bytes)
        before_bytes = self._left_bytes
        self._left_bytes = unread_bytes + self._queued_bytes() if unread_bytes else 0
        if self._left_bytes < before_bytes or not before_bytes:
            self._stalled_s = now_s + self._limits.write_stall_s
        return unread_bytes > 0 and now_s >= self._stalled_s

    def _queued_bytes(self) -> int:
        """The bytes in the kernel's buffer. The kernel takes more only when a third of its buffer, which can be several
        megabytes, is free: without this, a slow client would look as if it read nothing."""
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return 0
        try:
            return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
        except OSError:  # not a socket of this kind, or closed
            return 0

    @property
    def unread_bytes(self) -> int:
        """The unread bytes at the last check."""
        return self._unread.held_bytes

    def close(self) -> None:
        self._unread.hold(0)
        self._on_end = _nothing  # break the reference cycle with the connection
