"""What the two shells share in their use of httpx."""

from __future__ import annotations

import ssl
from functools import cache

import httpx

from headwater import limits
from headwater.client.effects import HttpReply, HttpRequest
from headwater.client.session import Session, lost
from headwater.errors import NetworkError, ProtocolError

# Without a bound on connections: every live reader holds one.
POOL = httpx.Limits(max_connections=None, max_keepalive_connections=limits.IDLE_CONNECTIONS_MAX)


@cache
def tls_context() -> ssl.SSLContext:
    """The certificates that clients trust, loaded once: it takes some 30 ms."""
    return httpx.create_ssl_context()


def build(http: httpx.Client | httpx.AsyncClient, session: Session, request: HttpRequest) -> httpx.Request:
    return http.build_request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body if request.method in ("POST", "PUT") else None,
        timeout=httpx.Timeout(request.read_timeout_s, connect=session.timeouts.connect_s, pool=None),
    )


def check_size(reply: HttpReply, size_bytes: int) -> bool:
    """Whether enough of an answer was received: of an error a part will do. Any other that is too large is an error."""
    if reply.status >= 300:
        return size_bytes >= limits.ERROR_BODY_BYTES_MAX
    if size_bytes > limits.ANSWER_BYTES_MAX:
        raise ProtocolError(f"the answer is longer than {limits.ANSWER_BYTES_MAX} bytes")
    return False


def network_error(request: HttpRequest, error: httpx.HTTPError) -> NetworkError:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return lost(request, reason, "connect")
    return lost(request, reason, "timeout" if isinstance(error, httpx.TimeoutException) else "lost")
