"""What the two shells share in their use of httpx."""

from __future__ import annotations

import ssl
from functools import cache

import httpx

from headwater import limits
from headwater.client.effects import HttpRequest
from headwater.client.session import Session, lost
from headwater.errors import NetworkError

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


def may_redirect(request: HttpRequest) -> bool:
    """Only what has no body is safe to send elsewhere: clients turn a redirected POST into a GET."""
    return request.method in ("GET", "HEAD") and not request.guarded


def network_error(request: HttpRequest, error: httpx.HTTPError) -> NetworkError:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return lost(request, reason, "connect")
    return lost(request, reason, "timeout" if isinstance(error, httpx.TimeoutException) else "lost")
