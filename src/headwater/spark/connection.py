"""How tasks and the driver connect to the server: URL, credentials, TLS, timeouts and retries."""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headwater import limits
from headwater.client import Client, Report, Retry, Timeouts
from headwater.client.transport import tls_context
from headwater.errors import OptionError
from headwater.spark.given import GivenOptions
from headwater.spark.tokens import current_token, is_header_value, new_token

log = logging.getLogger(__name__)

CONNECTION = (
    "url",
    "token",
    "tokenFile",
    "tokenFunction",
    "headers",
    "caFile",
    "clientCertificate",
    "clientKey",
    "connectTimeout",
    "requestTimeout",
    "retryTimeout",
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("connection", "content-length", "host", "transfer-encoding")


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection settings. Token and headers are never printed."""

    url: str
    token: str | None = None
    token_file: str | None = None
    token_function: str | None = None
    headers: dict[str, str] = {}
    ca_file: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    connect_s: float
    answer_s: float
    retry_s: float

    def __repr__(self) -> str:
        return f"ConnectionOptions({self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]

    def open(self, *, patient: bool = True) -> Client:
        """A client that gives up after failing for `retry_s`, or after few attempts for checks."""
        attempts = limits.PRODUCER_INTEGER_MAX if patient else limits.SPARK_CONNECT_ATTEMPTS_MAX
        return Client(
            self.url,
            token=self._token_hook() or self.token,
            headers=self.headers,
            retry=Retry(attempts=attempts, most_s=limits.SPARK_RETRY_MAX_S),
            timeouts=Timeouts(connect_s=self.connect_s, answer_s=self.answer_s),
            on_error=_RetryDeadline(self.retry_s).check if patient else None,
            tls=self.tls(),
        )

    def credentials(self) -> dict[str, str]:
        """The credentials of a request that is sent without the client."""
        token = current_token(self.token_file, self.token_function) or self.token
        return self.headers | ({"authorization": f"Bearer {token}"} if token is not None else {})

    def tls(self) -> ssl.SSLContext:
        try:
            return tls_context(self.ca_file, self.client_certificate, self.client_key)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            files = filter(None, (self.ca_file, self.client_certificate, self.client_key))
            raise OptionError(
                f"caFile, clientCertificate, clientKey: {', '.join(files)} cannot be used: {error}"
            ) from None

    def _token_hook(self) -> Callable[[], str] | None:
        """The token function of the client: called for the first token, and again after the server refused one."""
        if self.token_file is None and self.token_function is None:
            return None
        asked = False

        def token() -> str:
            nonlocal asked
            renewed, asked = asked, True
            found = new_token if renewed else current_token
            return found(self.token_file, self.token_function) or ""

        return token


class _RetryDeadline:
    """Ends an operation that has failed for too long. Operations are tracked per thread."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._of_thread = threading.local()

    def check(self, report: Report) -> None:
        now_s = time.monotonic()
        if report.attempt == 1:
            self._of_thread.since_s = now_s
        elif now_s + report.delay_s - self._of_thread.since_s > self._most_s:
            raise report.error
        log.warning("attempt %d failed, retrying in %.1f s: %s", report.attempt, report.delay_s, report.error)


def connection_options(root: str, found: GivenOptions) -> ConnectionOptions:
    options = ConnectionOptions(
        url=root,
        token=found.text("token"),
        token_file=found.text("tokenFile"),
        token_function=found.text("tokenFunction"),
        headers=_headers(found),
        ca_file=found.text("caFile"),
        client_certificate=found.text("clientCertificate"),
        client_key=found.text("clientKey"),
        connect_s=found.number("connectTimeout", float, limits.CONNECT_TIMEOUT_S),
        answer_s=found.number("requestTimeout", float, limits.ANSWER_TIMEOUT_S),
        retry_s=found.number("retryTimeout", float, limits.SPARK_RETRY_S),
    )
    tokens = [options.token, options.token_file, options.token_function, options.headers.get("authorization")]
    if len([token for token in tokens if token is not None]) > 1:
        raise OptionError("set only one of token, tokenFile, tokenFunction and the header authorization")
    if options.token is not None and not is_header_value(options.token):
        raise OptionError("the token must be printable ASCII")
    if options.token_function is not None and not re.fullmatch(r"[\w.]+:[\w.]+", options.token_function):
        raise OptionError(f"tokenFunction must be module:function, got {options.token_function!r}")
    if options.client_key is not None and options.client_certificate is None:
        raise OptionError("clientKey needs clientCertificate; set both, or set clientCertificate to a file with both")
    is_tls = bool(options.ca_file or options.client_certificate)
    if is_tls and not root.startswith("https://"):
        raise OptionError("caFile and clientCertificate need a url with https")
    return options


def _headers(found: GivenOptions) -> dict[str, str]:
    """Headers as JSON, or as options `header.NAME`. Errors do not show values, which may be secrets."""
    given = found.text("headers")
    try:
        headers = msgspec.json.decode(given, type=dict[str, str]) if given is not None else {}
    except msgspec.MsgspecError:
        raise OptionError(
            'headers must be JSON such as {"X-Api-Key": "…"}; or set options such as header.X-Api-Key'
        ) from None
    headers = {name.lower(): value for name, value in headers.items()} | found.below("header")
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name in _FRAMING:
            raise OptionError(f"the header {name[:80]!r} cannot be set")
        if not is_header_value(value):
            raise OptionError(f"the header {name} must be printable ASCII")
    return headers
