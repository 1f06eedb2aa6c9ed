"""Protection against other web pages: the host names that the server accepts, and the origins that it allows.

Any page in a browser can send requests, also to servers on the browser's own machine. The browser sends the origin of
the page in `Origin`, and the host name that it used in `Host`.

    Host      a page can let its own host name resolve to the server's address (DNS rebinding), and then has the same
              origin as the server. So a server on a loopback address accepts only loopback names.
    Origin    a page of another origin must not write, and must not read responses, unless its origin is allowed. CORS
              headers tell the browser which origins are allowed.

Programs other than browsers send no `Origin` and are not checked.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from headwater.errors import HostNotAllowedError, OriginNotAllowedError
from headwater.limits import CACHED_TEXT_LENGTH_MAX, HOSTS_KNOWN_MAX
from headwater.protocol.streams import headers
from headwater.protocol.tables import headers as table_headers
from headwater.protocol.tables.paths import url_fault
from headwater.server.forwarding import TrustedProxies
from headwater.server.http import Headers, Request

log = logging.getLogger("headwater.server")

ANY = "*"

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@\s]+)(?::([0-9]{1,5}))?")
_READS = ("GET", "HEAD")
_VARY: Headers = (("vary", "origin"),)
_EXPOSED = ", ".join(
    (*headers.RESPONSE_HEADERS, *table_headers.RESPONSE_HEADERS, "etag", "location", "retry-after", "www-authenticate")
)
_ALLOWED_HEADERS = ", ".join(
    (
        *headers.REQUEST_HEADERS,
        *table_headers.REQUEST_HEADERS,
        "authorization",
        "cache-control",
        "content-type",
        "if-none-match",
        "last-event-id",
    )
)
_ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


class Access:
    """`hosts` None: any. `origins` None: the surrounding application handles CORS, and nothing is checked here."""

    def __init__(
        self,
        *,
        origins: Iterable[str] | None = (),
        hosts: Iterable[str] | None = None,
        loopback: bool = False,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self._origins = None if origins is None else frozenset(map(parse_origin, origins))
        self._hosts = None if hosts is None else frozenset(map(parse_host, hosts))
        self._loopback = loopback  # pages on this machine are allowed
        self._proxies = proxies or None
        self._refused_origins: set[str] = set()
        self._known_hosts: set[str | None] = {None}  # browsers always send a host
        self._any_host = self._hosts is None or ANY in self._hosts
        self._any_origin = self._origins is not None and ANY in self._origins
        self._shared = self._shared_headers()

    def trusts(self, peer: str) -> bool:
        """Whether an address is that of a trusted proxy."""
        return self._proxies is not None and self._proxies.trusts(peer)

    def check(self, request: Request) -> Headers:
        """Refuse a host or an origin that is not allowed. Returns the headers to add to the response."""
        if self._proxies is not None:
            self._proxies.apply(request)
        fields = request.headers
        if not self._any_host:
            if fields.get("host") not in self._known_hosts:
                self._check_host(fields.get("host"))
            if self._hosts and request.authority and request.authority not in self._known_hosts:
                self._check_host(request.authority)  # as a proxy forwards it; it may have replaced Host
        origin = fields.get("origin")
        if origin is not None:
            return self._check_origin(request, origin)
        return self._shared if request.method in _READS else ()

    # Hosts

    def _check_host(self, host: str | None) -> None:
        """Refuse a request for a host that is not allowed."""
        if host is None or not self._is_ours(host.lower()):
            raise HostNotAllowedError(
                f"this server does not answer for the host {(host or '')[:80]!r}; "
                "allow it with --allow-host NAME (headwater serve) or allow_hosts (the ASGI app)"
            )
        if len(host) <= CACHED_TEXT_LENGTH_MAX and len(self._known_hosts) < HOSTS_KNOWN_MAX:
            self._known_hosts.add(host)

    def _is_ours(self, authority: str) -> bool:
        name = _hostname(authority)
        return name is not None and (is_loopback(name) or name in self._named or authority in self._named)

    @property
    def _named(self) -> frozenset[str]:
        return self._hosts or frozenset()

    # Origins

    def _check_origin(self, request: Request, origin: str) -> Headers:
        """The headers to add to the response to a page. Writes from an origin that is not allowed are refused."""
        reads = request.method in _READS
        if self._origins is None or self._any_origin:
            return self._shared if reads else self._shared[:2]
        if not self._is_admitted(request, origin):
            # Without CORS headers, the browser hides the response to a read from the page, and takes a preflight as
            # refused.
            if reads:
                return self._shared
            reason = (
                f"pages of the origin {origin[:80]!r} may not use this server; "
                "allow it with --allow-origin ORIGIN (headwater serve) or allow_origins (the ASGI app)"
            )
            if request.method == "OPTIONS":
                self._log_refused(origin[:80], reason)
                return _VARY
            raise OriginNotAllowedError(reason)
        granted = (("access-control-allow-origin", origin), ("access-control-expose-headers", _EXPOSED))
        return (*self._shared, *granted) if reads else (*_VARY, *granted)

    def _log_refused(self, origin: str, reason: str) -> None:
        """Log a refused preflight, once for each origin: the browser tells the page nothing, and sends no request."""
        if origin not in self._refused_origins and len(self._refused_origins) < HOSTS_KNOWN_MAX:
            self._refused_origins.add(origin)
            log.warning("a preflight was refused: %s", reason)

    def preflight(self, request: Request) -> Headers:
        """The headers of the response to a preflight."""
        if self._origins is None:
            return ()
        response_headers: Headers = (
            ("access-control-allow-methods", _ALLOWED_METHODS),
            ("access-control-allow-headers", _ALLOWED_HEADERS),
            ("access-control-max-age", "86400"),
        )
        if "access-control-request-private-network" in request.headers:
            response_headers += (("access-control-allow-private-network", "true"),)
        return response_headers

    def _is_admitted(self, request: Request, origin: str) -> bool:
        scheme, separator, authority = origin.lower().partition("://")
        if origin.lower() in (self._origins or ()):
            return True
        if not separator or scheme not in ("http", "https"):
            return False
        if authority == (request.authority or request.headers.get("host", "")).lower():
            return True
        name = _hostname(authority)
        return self._loopback and name is not None and is_loopback(name)

    def _shared_headers(self) -> Headers:
        """Headers of every response to a read, because caches may serve it to other clients."""
        if self._origins is None:
            return ()
        if self._any_origin:
            return (
                ("access-control-allow-origin", ANY),
                ("access-control-expose-headers", _EXPOSED),
                ("cross-origin-resource-policy", "cross-origin"),
            )
        return (*_VARY, ("cross-origin-resource-policy", "same-origin"))


def access_at(
    host: str,
    *,
    origins: Iterable[str] = (),
    hosts: Iterable[str] = (),
    proxies: TrustedProxies | None = None,
    behind_proxy: bool = False,
) -> Access:
    """The policy of a server that listens on an address. Behind a proxy, a loopback name in `Origin` names the machine
    of the client rather than this one."""
    loopback = is_loopback(host.lower())
    names = tuple(hosts)
    return Access(
        origins=origins,
        hosts=names if names or loopback else None,
        loopback=loopback and not behind_proxy,
        proxies=proxies,
    )


def is_loopback(name: str) -> bool:
    """Whether a host name or address, in lower case, is a loopback one."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_origin(text: str) -> str:
    """Parse an origin as browsers send it, with a port unless it is the default one; or `*` or `null`."""
    text = text.strip().lower()
    if text in (ANY, "null"):
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or text != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"an origin is like https://app.example or http://localhost:3000, or *, got {text!r}")
    if _hostname(parts.netloc) is None:
        raise ValueError(f"{text!r} names no host")
    return text


def parse_host(text: str) -> str:
    """Parse a host as browsers send it, with a port or without; or `*`."""
    name = text.strip().lower()
    if name != ANY and _hostname(name) is None:
        raise ValueError(f"a host is like streams.example or streams.example:8443, or *, got {text[:80]!r}")
    return name


def parse_public_url(text: str) -> str:
    """Parse the public URL of the server: absolute, without a query. The paths of routes are appended to it."""
    url = text.strip().rstrip("/")
    fault = url_fault(url)
    if fault is None and "?" in url:
        fault = "it has a query"
    if fault is not None:
        raise ValueError(f"a public URL is like https://tables.example, got {text[:80]!r}: {fault}")
    return url


def _hostname(authority: str) -> str | None:
    """The host of `host:port`, in lower case."""
    match = _AUTHORITY.fullmatch(authority)
    return None if match is None else match[1]
