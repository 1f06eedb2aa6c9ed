"""What all requests of a client share: where to, as whom, and how patiently."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from headwater import limits
from headwater.client.answers import error_of
from headwater.client.effects import Flow, GetToken, HttpReply, HttpRequest, Report, Send, Sleep
from headwater.errors import HeadwaterError, NetworkError, UnauthorizedError
from headwater.protocol.encodings import IDENTITY
from headwater.protocol.streams.paths import STREAM_ROOT, quote_path
from headwater.protocol.tables.paths import TABLE_ROOT, check_name
from headwater.protocol.tables.urls import url_fault

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    A request fails after `attempts`. So does a read as long as the server has never answered; after that it is retried
    without end.
    """

    attempts: int = limits.RETRY_ATTEMPTS_MAX
    first_s: float = limits.RETRY_FIRST_S
    most_s: float = limits.RETRY_MAX_S

    def delay_s(self, failures: int, chance: float, at_least_s: float | None = None) -> float:
        """The wait after so many failures; at least what the server asked for."""
        ceiling = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return max(ceiling * chance, at_least_s or 0.0)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for bytes before a connection counts as dead."""

    connect_s: float = limits.CONNECT_TIMEOUT_S
    answer_s: float = limits.ANSWER_TIMEOUT_S
    long_poll_s: float = limits.LONG_POLL_TIMEOUT_S
    sse_idle_s: float = limits.SSE_IDLE_TIMEOUT_S
    sse_first_s: float = limits.SSE_FIRST_TIMEOUT_S


class Session:
    """The root URL, headers and token of a client. The token is the only thing that changes."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None,
        token: str | Callable[[], Any] | None,
        retry: Retry,
        timeouts: Timeouts,
        on_error: Callable[[Report], Any] | None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected a URL such as http://127.0.0.1:4437, got {url!r}")
        if parts.query or parts.fragment:
            raise ValueError(f"the server's URL has no query: {url!r}")
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{error}: {url!r}") from None
        origin = f"{parts.scheme}://{parts.netloc}"
        self.root = f"{url.rstrip('/')}/" if parts.path.strip("/") else f"{origin}{STREAM_ROOT}"
        before = self.root.removesuffix(STREAM_ROOT) if self.root.endswith(STREAM_ROOT) else origin
        self.table_root = f"{before}{TABLE_ROOT}"
        self._origin = (parts.scheme, parts.netloc)
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}
        if parts.hostname in LOOPBACK:
            self.headers.setdefault("accept-encoding", IDENTITY)  # compression costs more than it saves on one machine
        self.token = token if isinstance(token, str) else None
        self.token_hook = token if callable(token) else None
        self.retry = retry
        self.timeouts = timeouts
        self.on_error = on_error
        self.chance = random.random
        self.clock = time.monotonic

    def url_of(self, path: str) -> str:
        """The URL of a stream, given its path below the root or the URL itself."""
        if path.startswith(("http://", "https://")):
            return path
        path = path.strip("/")
        if not path:
            raise ValueError("a stream's path cannot be empty")
        return f"{self.root}{quote_path(path)}"

    def table_url_of(self, name: str) -> str:
        """The URL of a table, given its name on this server or any SURL."""
        if name.startswith(("http://", "https://")):
            if fault := url_fault(name):
                raise ValueError(f"not a SURL, {fault}: {name!r}")
            return name
        name = name.strip("/")
        if not name:
            raise ValueError("a table's name cannot be empty")
        return f"{self.table_root}{quote_path(check_name(name))}"

    def is_own(self, url: str) -> bool:
        """Whether a URL is on the client's server."""
        return urlsplit(url)[:2] in (self._origin, ("", ""))

    def with_headers(self, request: HttpRequest) -> HttpRequest:
        """The request with the headers that every request carries."""
        own = self.is_own(request.url)
        given = {**(self.headers if own or not request.guarded else {}), **request.headers}
        if self.token is not None and own:
            given["authorization"] = f"Bearer {self.token}"  # which is for this server and no other
        for name, value in given.items():
            if not (value.isascii() and value.isprintable()):
                shown = "the token" if name == "authorization" else repr(value[:80])
                raise ValueError(f"{name} must be printable ASCII: {shown}")
        return msgspec.structs.replace(request, headers=given)

    def ensure_token(self) -> Flow[None]:
        """Ask the token hook for the first token, if there is a hook."""
        if self.token is None and self.token_hook is not None:
            self.token = yield GetToken()

    def refresh_token(self, refused: str | None) -> Flow[bool]:
        """Replace a token that the server refused; False if there is no other."""
        if self.token_hook is None:
            return False
        if self.token == refused:
            self.token = yield GetToken()
        return self.token != refused


def with_query(url: str, **query: str | None) -> str:
    """The URL with parameters added to those it has."""
    parts = urlsplit(url)
    added = urlencode({name: value for name, value in query.items() if value is not None})
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, added)))))


def attempt(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """Send once, or twice if the token had run out. Any answer that is not a success is an error."""
    yield from session.ensure_token()
    token = session.token
    reply: HttpReply = yield Send(session.with_headers(request))
    if reply.status == 401 and (yield from session.refresh_token(token)):
        reply = yield Send(session.with_headers(request))
    if reply.status >= 300:
        raise error_of(request, reply)
    return reply


def exchange(
    session: Session, request: HttpRequest, *, repeatable: bool = True, attempts_max: int | None = None
) -> Flow[HttpReply]:
    """Send until there is a success or no hope of one.

    What must not happen twice is sent again only if the server said that it did nothing.
    """
    attempts, attempts_max = 0, attempts_max or session.retry.attempts
    while True:
        try:
            return (yield from attempt(session, request))
        except UnauthorizedError:
            raise
        except HeadwaterError as error:
            attempts += 1
            error.attempts = attempts
            again = error.retryable and (repeatable or error.nothing_done)
            if not again or attempts >= attempts_max:
                raise
            yield from pause(session, error, attempts)


def pause(session: Session, error: HeadwaterError, attempts: int) -> Flow[None]:
    delay_s = session.retry.delay_s(attempts, session.chance(), error.retry_after_s)
    yield Report(error, attempts, delay_s)
    yield Sleep(delay_s)


def lost(request: HttpRequest, reason: str, how: Literal["connect", "timeout", "lost"] = "lost") -> NetworkError:
    error = NetworkError(reason)
    error.url = request.url
    error.how = how
    error.nothing_done = how == "connect"
    return error
