"""Performs the effects of flows with httpx, blocking."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from headwater.client import forking
from headwater.client.effects import (
    Call,
    CloseReply,
    Effect,
    HttpReply,
    HttpRequest,
    Open,
    Receive,
    Report,
    Send,
    Sleep,
)
from headwater.client.forking import Lent, Pools
from headwater.client.session import Session, lost
from headwater.client.transport import Sending, build, check_size, network_error
from headwater.protocol.inflating import Inflater


class Transport:
    """Performs effects. At most one response is open at a time. Errors of httpx become NetworkErrors."""

    def __init__(self, pools: Pools[httpx.Client], session: Session) -> None:
        self._pools = pools
        self._lent: Lent[httpx.Client] | None = None  # the pool of the open response
        self._process = forking.process()
        self._session = session
        self._request = HttpRequest("", "")
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._inflater = Inflater(None)
        self._pieces: Iterator[bytes] = iter(())  # of the last chunk
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        """Interrupt another thread that waits in this transport."""
        self.interrupted.set()
        self.hang_up()

    def hang_up(self) -> None:
        """End the open response, while another thread may wait for its next bytes. The flow goes on."""
        self._leave_parent()
        response = self._response
        if response is not None:
            with contextlib.suppress(OSError, AttributeError, KeyError):  # already closed, or not a socket
                response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self.send(request)
            case Open(request):
                return self.open(request)
            case Receive():
                return self.receive()
            case CloseReply():
                self.close()
            case Sleep(seconds):
                self.interrupted.wait(seconds)
            case Report():
                if self._session.on_error is not None:
                    self._session.on_error(effect)
            case Call(hook):
                return hook()
        return None

    def send(self, request: HttpRequest) -> HttpReply:
        reply = self.open(request)
        body = bytearray()
        try:
            while chunk := self.receive():
                body += chunk
                if check_size(reply, len(body)):
                    break
        finally:
            self.close()
        return HttpReply(reply.status, reply.headers, bytes(body))

    def open(self, request: HttpRequest) -> HttpReply:
        self.close()
        self._request = request
        sending, lent = Sending(), self._pools.lend()
        self._lent, http = lent, lent.pool
        try:
            self._response = http.send(
                build(http, self._session, request, sending), stream=True, follow_redirects=False
            )
        except httpx.HTTPError as error:
            raise network_error(request, error, sending) from error
        # The user's httpx transport may have received and decompressed the whole response already.
        received = self._response.is_stream_consumed
        self._chunks = self._response.iter_bytes() if received else self._response.iter_raw()
        self._inflater = Inflater(None if received else self._response.headers.get("content-encoding"))
        self._pieces = iter(())
        return HttpReply(self._response.status_code, self._response.headers)

    def receive(self) -> bytes:
        if self._leave_parent():  # a read continues from its position, over a connection of this process
            raise lost(self._request, "the connection belongs to the parent process", "lost")
        while True:
            if piece := next(filter(None, self._pieces), b""):
                return piece
            try:
                chunk = next(self._chunks, None)
            except httpx.HTTPError as error:
                raise network_error(self._request, error) from error
            if chunk is None:
                self._inflater.finish()
                self.close()  # the connection is in the pool, for other requests
                return b""
            self._pieces = self._inflater.feed(chunk)

    def close(self) -> None:
        self._leave_parent()
        response, self._response = self._response, None
        if response is not None:
            with contextlib.suppress(httpx.HTTPError):
                response.close()
        lent, self._lent = self._lent, None
        if lent is not None:
            self._pools.give_back(lent)

    def _leave_parent(self) -> bool:
        """Whether the open response belongs to the parent process. It is then left alone: the parent reads it."""
        if self._process == forking.process():
            return False
        is_left = self._response is not None
        forking.leave(self._response, self._chunks, self._pieces, self._lent)
        self._lent = None
        self._response, self._chunks, self._pieces = None, iter(()), iter(())
        self._process = forking.process()
        return is_left
