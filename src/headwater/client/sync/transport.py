"""Does over httpx what flows ask for, blocking."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from headwater.client.effects import (
    CloseReply,
    Effect,
    GetToken,
    HttpReply,
    HttpRequest,
    Open,
    Receive,
    Report,
    Send,
    Sleep,
)
from headwater.client.session import Session
from headwater.client.transport import build, may_redirect, network_error


class Transport:
    """Does what flows ask for. At most one answer is open at a time; errors of httpx become NetworkErrors."""

    def __init__(self, http: httpx.Client, session: Session) -> None:
        self._http = http
        self._session = session
        self._request = HttpRequest("", "")
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        """End what another thread is waiting for here."""
        self.interrupted.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(OSError, AttributeError, KeyError):  # gone already, or no socket at all
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
            case GetToken():
                return self._session.token_hook and self._session.token_hook()
        return None

    def send(self, request: HttpRequest) -> HttpReply:
        reply = self.open(request)
        try:
            body = b"".join(iter(self.receive, b""))
        finally:
            self.close()
        return HttpReply(reply.status, reply.headers, body)

    def open(self, request: HttpRequest) -> HttpReply:
        self.close()
        self._request = request
        try:
            self._response = self._http.send(
                build(self._http, self._session, request), stream=True, follow_redirects=may_redirect(request)
            )
        except httpx.HTTPError as error:
            raise network_error(request, error) from error
        self._chunks = self._response.iter_raw() if request.raw else self._response.iter_bytes()
        return HttpReply(self._response.status_code, self._response.headers)

    def receive(self) -> bytes:
        try:
            return next(filter(None, self._chunks), b"")
        except httpx.HTTPError as error:
            raise network_error(self._request, error) from error

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            with contextlib.suppress(httpx.HTTPError):
                response.close()
