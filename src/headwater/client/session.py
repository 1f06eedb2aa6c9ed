"""The settings that all requests of a client share: URL, credentials, headers, retries and timeouts."""

from __future__ import annotations

import base64
import copy
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import SplitResult, quote_plus, unquote, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from headwater import limits
from headwater.backoff import Backoff
from headwater.client.answers import error_of
from headwater.client.effects import Call, Flow, HttpReply, HttpRequest, Open, Receive, Report, Send, Sleep
from headwater.elapsed import elapsed_s
from headwater.errors import (
    HeadwaterError,
    NetworkError,
    NotReadyError,
    OutcomePendingError,
    RedirectError,
    StoppingError,
    UnauthorizedError,
    UnavailableError,
)
from headwater.protocol.encodings import IDENTITY
from headwater.protocol.inflating import ACCEPTED
from headwater.protocol.streams.paths import STREAM_ROOT, check_path, quote_path
from headwater.protocol.tables.paths import TABLE_ROOT, check_name, url_fault

LOOPBACK = ("localhost", "127.0.0.1", "::1")

# The value of a header or a parameter, or a function that returns it and is called before every request.
Setting: TypeAlias = str | Callable[[], Any]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    A request fails after `attempts`. If the server has responded to this client before and is away, as during a
    restart, the request is retried until `patience_s` after its first failure, even if that takes more attempts. The
    server is away if no connection can be made, or it is lost, or the server or a proxy says so (502, 503, 504).
    `attempts=1` turns off all retries.

    A read also fails after `attempts` if the server has never responded; after the first response, a read is retried
    without limit.
    """

    attempts: int = limits.RETRY_ATTEMPTS_MAX
    first_s: float = limits.RETRY_FIRST_S
    most_s: float = limits.RETRY_MAX_S
    patience_s: float = limits.RETRY_PATIENCE_S

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if not 0 <= self.patience_s < math.inf:
            raise ValueError(f"patience_s must be at least 0 and finite, got {self.patience_s}")
        self.delay_s(1, 0.0)  # checks the waits

    def delay_s(self, failures: int, chance: float, at_least_s: float | None = None) -> float:
        """The wait after this many failures, and at least the time that the server asked for."""
        backoff = Backoff(self.first_s, self.most_s, jitter=1.0)
        return max(backoff.wait_s(failures, chance), at_least_s or 0.0)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for bytes before a connection counts as dead."""

    connect_s: float = limits.CONNECT_TIMEOUT_S
    answer_s: float = limits.ANSWER_TIMEOUT_S
    long_poll_s: float = limits.LONG_POLL_TIMEOUT_S
    sse_idle_s: float = limits.SSE_IDLE_TIMEOUT_S
    sse_first_s: float = limits.SSE_FIRST_TIMEOUT_S


class Contact(msgspec.Struct):
    """Whether the server has responded to a client. All handles of the client share it."""

    made: bool = False


class Credentials(msgspec.Struct):
    """The token of a client, shared by all its handles, because it can change."""

    token: str | None = None
    hook: Callable[[], Any] | None = None


_OF_PROCESS = (
    "chance",
    "clock",
    "lease_clock",
    "contact",
)  # of a session; another process has its own


class Session:
    """The root URL, headers, parameters and credentials of a client, or of one of its handles."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, Setting] | None,
        params: Mapping[str, Setting] | None,
        token: str | Callable[[], Any] | None,
        retry: Retry,
        timeouts: Timeouts,
        on_error: Callable[[Report], Any] | None,
    ) -> None:
        parts = _checked(url)
        origin = f"{parts.scheme}://{_host(parts)}"
        path = parts.path.strip("/")
        self.root = f"{origin}/{path}/" if path else f"{origin}{STREAM_ROOT}"
        before = self.root.removesuffix(STREAM_ROOT) if self.root.endswith(STREAM_ROOT) else self.root.rstrip("/")
        self.table_root = f"{before}{TABLE_ROOT}"
        self._origin = _origin(parts)
        self.headers = _lowered(headers)
        if parts.username is not None:
            self.headers.setdefault("authorization", _basic(parts))
        self.params = dict(params or {})
        # Compression costs more than it saves on one machine.
        self._encodings = IDENTITY if parts.hostname in LOOPBACK else ACCEPTED
        self.credentials = Credentials(token) if isinstance(token, str) else Credentials(hook=token)
        self.contact = Contact()
        self.retry = retry
        self.timeouts = timeouts
        self.on_error = on_error
        self.chance = random.random
        self.clock = time.monotonic
        self.lease_clock = elapsed_s  # of leases, which go on while the machine is suspended

    def __copy__(self) -> Session:
        session = object.__new__(Session)
        vars(session).update(vars(self))
        return session

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs. Its clock, its random numbers and its contact to the server are its own."""
        return {name: value for name, value in vars(self).items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, chance=random.random, clock=time.monotonic, lease_clock=elapsed_s, contact=Contact())

    def with_settings(self, headers: Mapping[str, Setting] | None, params: Mapping[str, Setting] | None) -> Session:
        """A copy of the session with additional headers and parameters of a handle."""
        if not headers and not params:
            return self
        session = copy.copy(self)
        session.headers = {**self.headers, **_lowered(headers)}
        session.params = {**self.params, **(params or {})}
        return session

    def url_of(self, path: str) -> str:
        """The URL of a stream, given its path on this server or its full URL."""
        if path.startswith(("http://", "https://")):
            return self._foreign(path)
        path = path.strip("/")
        if not path:
            raise ValueError("a stream's path cannot be empty")
        return f"{self.root}{quote_path(check_path(path))}"

    def table_url_of(self, name: str) -> str:
        """The URL of a table, given its name on this server or any SURL."""
        if name.startswith(("http://", "https://")):
            url = self._foreign(name) if self.is_own(name) else name  # with or without the user it named
            if fault := url_fault(url):
                raise ValueError(f"not a SURL, {fault}: {redacted(url)!r}")
            return self._foreign(url)
        name = name.strip("/")
        if not name:
            raise ValueError("a table's name cannot be empty")
        return f"{self.table_root}{quote_path(check_path(check_name(name)))}"

    def _foreign(self, url: str) -> str:
        """Check a full URL. Its path is used unchanged, so it must not have segments such as `..`."""
        parts = urlsplit(url)
        for segment in parts.path.split("/"):
            if unquote(segment) in (".", ".."):
                raise ValueError(f"a URL with the path segment {segment!r} names another one: {redacted(url)!r}")
        if parts.username is not None and self.is_own(url):
            return urlunsplit(parts._replace(netloc=_host(parts)))
        if parts.username is not None:
            raise ValueError(f"give credentials to the client of that server, not in a URL: {redacted(url)!r}")
        return url

    def is_own(self, url: str) -> bool:
        """Whether a URL is on the client's server."""
        parts = urlsplit(url)
        return not parts.netloc or _origin(parts) == self._origin

    def prepared(self, request: HttpRequest) -> Flow[HttpRequest]:
        """The request as it is sent. The client's headers, parameters and token are only added for its own server."""
        headers, url = {"accept-encoding": self._encodings}, request.url
        if self.is_own(url):
            headers |= yield from _resolved(self.headers)
            if self.params:
                url = with_query(url, **_missing(url, (yield from _resolved(self.params))))
            if self.credentials.token is not None:
                headers["authorization"] = f"Bearer {self.credentials.token}"
        headers |= request.headers
        for name, value in headers.items():
            _check_header(name, value)
        return msgspec.structs.replace(request, url=url, headers=headers)

    def fixed_headers(self) -> dict[str, str]:
        headers = {name: value for name, value in self.headers.items() if isinstance(value, str)}
        if self.credentials.token is not None:
            headers["authorization"] = f"Bearer {self.credentials.token}"
        return headers

    def ensure_token(self) -> Flow[None]:
        """Ask the token hook for the first token, if there is a hook."""
        credentials = self.credentials
        if credentials.token is None and credentials.hook is not None:
            credentials.token = yield Call(credentials.hook)

    def refresh_token(self, refused: str | None) -> Flow[bool]:
        """Replace a token that the server refused. False if there is no other token."""
        credentials = self.credentials
        if credentials.hook is None:
            return False
        if credentials.token == refused:
            credentials.token = yield Call(credentials.hook)
        return credentials.token != refused


_SECRET = {"authorization": "the token", "cookie": "the cookie"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _check_header(name: str, value: str) -> None:
    """Refuse what HTTP cannot carry. httpx would report it as a failure of the connection, which is retried."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"not the name of a header: {name[:80]!r}")
    if name.lower() == "authorization" and value.strip().lower() == "bearer":
        raise ValueError("the token is empty")
    shown = _SECRET.get(name.lower()) or repr(value[:80])
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"{name} must be printable ASCII: {shown}")
    if value != value.strip():
        raise ValueError(f"{name} must not begin or end with a space: {shown}")


def _checked(url: str) -> SplitResult:
    """The parts of the URL of a server. Errors do not show its password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected a URL such as http://127.0.0.1:4437, got {redacted(url)!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"the server's URL has no query: {redacted(url)!r}")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{error}: {redacted(url)!r}") from None
    return parts


def redacted(url: str) -> str:
    """A URL without user name and password, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=_host(parts))) if "@" in parts.netloc else url


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _origin(parts: SplitResult) -> tuple[str, str, int | None]:
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:  # the port is not a number, so it matches no origin
        port = -1
    return parts.scheme, parts.hostname or "", port


def _basic(parts: SplitResult) -> str:
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _lowered(headers: Mapping[str, Setting] | None) -> dict[str, Setting]:
    return {name.lower(): value for name, value in (headers or {}).items()}


def _resolved(settings: Mapping[str, Setting]) -> Flow[dict[str, str]]:
    """The values of settings for this request; functions are called."""
    values = {}
    for name, value in settings.items():
        values[name] = (yield Call(value)) if callable(value) else value
    return values


def _missing(url: str, params: dict[str, str]) -> dict[str, str]:
    """The parameters that a URL does not have yet. The target of a redirect may have them."""
    present = {pair.partition("=")[0] for pair in urlsplit(url).query.split("&")}
    return {name: value for name, value in params.items() if quote_plus(name) not in present}


def with_query(url: str, /, **query: str | None) -> str:
    """Add parameters to a URL, sorted by name, because caches compare URLs as text."""
    parts = urlsplit(url)
    pairs = [pair for pair in parts.query.split("&") if pair]
    pairs += [urlencode({name: value}) for name, value in query.items() if value is not None]
    return urlunsplit(parts._replace(query="&".join(sorted(pairs, key=lambda pair: pair.partition("=")[0]))))


def ask(session: Session, request: HttpRequest, how: type[Send | Open]) -> Flow[HttpReply]:
    """Send a request, and again with a new token after 401. Requests without a body follow redirects."""
    for _ in range(limits.REDIRECTS_MAX + 1):
        reply = yield from _ask_once(session, request, how)
        location = reply.headers.get("location")
        if location is None or reply.status not in _REDIRECTS or request.method not in ("GET", "HEAD"):
            return reply
        url = urljoin(request.url, location)
        if request.guarded or not url.startswith(("http://", "https://")):
            return reply
        request = msgspec.structs.replace(request, url=url)
    error = RedirectError(f"more than {limits.REDIRECTS_MAX} redirects")
    error.url = request.url
    raise error


_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def _ask_once(session: Session, request: HttpRequest, how: type[Send | Open]) -> Flow[HttpReply]:
    own = session.is_own(request.url)
    if own:
        yield from session.ensure_token()
    token = session.credentials.token
    try:
        reply: HttpReply = yield how((yield from session.prepared(request)))
        used = own and "authorization" not in request.headers  # the token of a wake is not the client's
        if reply.status == 401 and used and (yield from session.refresh_token(token)):
            reply = yield how((yield from session.prepared(request)))
    except HeadwaterError as error:
        error.url = request.url  # without the client's parameters, which may be secrets
        raise
    if reply.status < 500:
        session.contact.made = True
    return reply


def opened(session: Session, request: HttpRequest, *statuses: int) -> Flow[HttpReply]:
    """Open a response. If its status is not one of these, read its body up to a limit and raise the error."""
    reply: HttpReply = yield from ask(session, request, Open)
    if reply.status in statuses:
        return reply
    body = b""
    while len(body) < limits.ERROR_BODY_BYTES_MAX and (chunk := (yield Receive())):
        body += chunk
    raise error_of(request, msgspec.structs.replace(reply, body=body[: limits.ERROR_BODY_BYTES_MAX]))


def attempt(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """Send once. Raise an error for any response that is not a success."""
    reply: HttpReply = yield from ask(session, request, Send)
    if reply.status >= 300:
        raise error_of(request, reply)
    return reply


def exchange(
    session: Session, request: HttpRequest, *, repeatable: bool = True, attempts_max: int | None = None
) -> Flow[HttpReply]:
    """Send until the request succeeds or fails permanently.

    A request that must not be repeated is sent again only if it certainly had no effect. One that may be repeated is
    also sent again if its outcome is unknown.
    """
    attempts, attempts_max = 0, attempts_max or session.retry.attempts
    patient_until_s = math.inf
    while True:
        try:
            return (yield from attempt(session, request))
        except UnauthorizedError:
            raise
        except HeadwaterError as error:
            attempts += 1
            error.attempts = attempts
            if not (error.retryable or (repeatable and error.outcome_unknown)):
                raise
            if not repeatable and not error.nothing_done:
                error.detail = f"{error.detail or error.title}; it may have been stored, so it was not sent again"
                raise
            patient_until_s = min(patient_until_s, session.clock() + session.retry.patience_s)
            away = _is_away(session, error)
            if attempts >= attempts_max and (attempts_max == 1 or not away or session.clock() >= patient_until_s):
                raise
            yield from pause(session, error, attempts, limits.RETRY_AWAY_MAX_S if away else math.inf)


def may_succeed(error: HeadwaterError) -> bool:
    """Whether a request that may be repeated can succeed later."""
    return error.retryable or error.outcome_unknown


def _is_away(session: Session, error: HeadwaterError) -> bool:
    """Whether a server that has responded before seems to be restarting."""
    away = (NetworkError, StoppingError, NotReadyError, UnavailableError, OutcomePendingError)
    gone = isinstance(error, away) or error.status in (502, 504)
    by_proxy = error.status == 503 and not error.nothing_done  # Headwater's own 503s have a type
    return session.contact.made and (gone or by_proxy)


def pause(session: Session, error: HeadwaterError, attempts: int, most_s: float = math.inf) -> Flow[None]:
    """Wait before the next attempt, at most `most_s` unless the server asks for more."""
    delay_s = min(session.retry.delay_s(attempts, session.chance()), most_s)
    delay_s = max(delay_s, error.retry_after_s or 0.0)
    yield Report(error, attempts, delay_s)
    yield Sleep(delay_s)


def lost(
    request: HttpRequest, reason: str, how: Literal["connect", "timeout", "lost"] = "lost", *, sent: bool = True
) -> NetworkError:
    """The error for a request without a response. `sent`: the server may have received all of it."""
    error = NetworkError(reason)
    error.url = request.url
    error.how = how
    error.nothing_done = how == "connect" or request.method in ("GET", "HEAD") or not sent
    return error
