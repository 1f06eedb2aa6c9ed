"""How both shells use httpx: connection pool, TLS, and errors."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Any

import httpx

from headwater import limits
from headwater.client.effects import HttpReply, HttpRequest
from headwater.client.session import Session, lost
from headwater.errors import NetworkError, ProtocolError

# No limit on connections, because every live reader holds one.
POOL = httpx.Limits(max_connections=None, max_keepalive_connections=limits.IDLE_CONNECTIONS_MAX)


def tls_context(ca_file: str | None = None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """The TLS context of clients: trusted authorities and the client certificate. Loading takes about 30 ms, so it is
    cached until a file changes. With a `ca_file`, only that authority is trusted."""
    files = [file for file in (ca_file, certificate, key) if file is not None]
    return _loaded(ca_file, certificate, key, tuple(os.stat(file).st_mtime_ns for file in files))


@lru_cache(maxsize=16)
def _loaded(ca_file: str | None, certificate: str | None, key: str | None, _: tuple[int, ...]) -> ssl.SSLContext:
    context = httpx.create_ssl_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
    if certificate is not None:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # otherwise OpenSSL would prompt for it
    return context


class Sending:
    """Watches how much of a request httpcore has sent. Transports of the user may not say."""

    def __init__(self) -> None:
        self._begun = self._complete = False

    @property
    def may_be_complete(self) -> bool:
        return self._complete or not self._begun

    def note(self, event: str, _: Any) -> None:
        if event.endswith("send_request_headers.started"):
            self._begun = True
        elif event.endswith("send_request_body.complete"):
            self._complete = True

    async def note_async(self, event: str, info: Any) -> None:
        self.note(event, info)


def build(
    http: httpx.Client | httpx.AsyncClient, session: Session, request: HttpRequest, sending: Sending
) -> httpx.Request:
    """The request for httpx. Only of a POST it matters how much was sent: others can be repeated."""
    note = sending.note if isinstance(http, httpx.Client) else sending.note_async
    return http.build_request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body if request.method in ("POST", "PUT") else None,
        timeout=httpx.Timeout(request.read_timeout_s, connect=session.timeouts.connect_s, pool=None),
        extensions={"trace": note} if request.method == "POST" else None,
    )


def check_size(reply: HttpReply, size_bytes: int) -> bool:
    """Whether enough of a response was received. Long error bodies are cut off; other long responses are an error."""
    if reply.status >= 300:
        return size_bytes >= limits.ERROR_BODY_BYTES_MAX
    if size_bytes > limits.ANSWER_BYTES_MAX:
        raise ProtocolError(f"the response is longer than {limits.ANSWER_BYTES_MAX} bytes")
    return False


def network_error(request: HttpRequest, error: httpx.HTTPError, sending: Sending | None = None) -> NetworkError:
    sent = sending is None or sending.may_be_complete
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return lost(request, reason, "connect")
    return lost(request, reason, "timeout" if isinstance(error, httpx.TimeoutException) else "lost", sent=sent)
