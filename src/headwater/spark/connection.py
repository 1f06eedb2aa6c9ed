"""How tasks and the driver connect to the server: URL, credentials, TLS, timeouts and retries."""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from headwater import limits
from headwater.client import Client, Report, Retry, Timeouts
from headwater.client.transport import tls_context
from headwater.errors import OptionError
from headwater.options import about
from headwater.spark.parsing import FormatOptions
from headwater.spark.tokens import current_token, is_header_value, new_token

log = logging.getLogger(__name__)

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("connection", "content-length", "host", "transfer-encoding")
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


def _token(name: str, text: str) -> str:
    if not is_header_value(text):
        raise OptionError("the token must be printable ASCII")
    return text


def _function(name: str, text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise OptionError(f"{name} must be module:function, got {text!r}")
    return text


def _headers(name: str, text: str) -> dict[str, str]:
    """The error does not show values, which may be secrets."""
    try:
        headers = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise OptionError(
            'headers must be JSON such as {"X-Api-Key": "…"}; or set options such as header.X-Api-Key'
        ) from None
    return {header.lower(): value for header, value in headers.items()}


class ConnectionOptions(FormatOptions, frozen=True, kw_only=True):
    """Connection settings, which all formats have. Token and headers are never printed."""

    url: Annotated[str, about("The server, or the URL of the stream or table itself.")]
    token: Annotated[str | None, about("Sent as a bearer token.", parse=_token)] = None
    token_file: Annotated[
        str | None,
        about(
            "A file that holds the token, on the driver and on every executor. It is read again when it has changed and"
            " when the server responds with 401, so you can replace the token of a running query."
        ),
    ] = None
    token_function: Annotated[
        str | None,
        about(
            "`module:function`, without arguments, which returns the token. The driver and every executor must be able"
            " to import it. It is called once in a process, and again when the server responds with 401.",
            parse=_function,
        ),
    ] = None
    headers: Annotated[
        dict[str, str],
        about(
            'More headers, as JSON: `{"X-Api-Key": "…"}`. Or one option for each header: `header.X-Api-Key`. For a'
            " scheme other than bearer tokens, set `header.Authorization`.",
            children="header",
            parse=_headers,
        ),
    ] = {}
    ca_file: Annotated[
        str | None,
        about("A file of authorities (PEM) to trust, and no others. Default: the certificates that Python trusts."),
    ] = None
    client_certificate: Annotated[str | None, about("A certificate (PEM) to show to the server.")] = None
    client_key: Annotated[
        str | None,
        about("The key of the certificate, if it is not in the same file. It must not be encrypted."),
    ] = None
    connect_timeout: Annotated[Seconds, about("Seconds for a connection.")] = limits.CONNECT_TIMEOUT_S
    request_timeout: Annotated[Seconds, about("Seconds for a response.")] = limits.ANSWER_TIMEOUT_S
    retry_timeout: Annotated[
        Seconds, about("Seconds of consecutive failures, after which a query ends. Each failed attempt is logged.")
    ] = limits.SPARK_RETRY_S

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]

    def open(self, *, patient: bool = True) -> Client:
        """A client that gives up after failing for `retry_timeout`, or after few attempts for checks."""
        attempts = limits.PRODUCER_INTEGER_MAX if patient else limits.SPARK_CONNECT_ATTEMPTS_MAX
        return Client(
            self.url,
            token=self._token_hook() or self.token,
            headers=self.headers,
            retry=Retry(attempts=attempts, most_s=limits.SPARK_RETRY_MAX_S),
            timeouts=Timeouts(connect_s=self.connect_timeout, answer_s=self.request_timeout),
            on_error=_RetryDeadline(self.retry_timeout).check if patient else None,
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
        is_used = False

        def token() -> str:
            nonlocal is_used
            function, is_used = new_token if is_used else current_token, True
            return function(self.token_file, self.token_function) or ""

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


def check_connection(options: ConnectionOptions) -> None:
    """Check what concerns several options, once the URL is that of the server."""
    tokens = [options.token, options.token_file, options.token_function, options.headers.get("authorization")]
    if len([token for token in tokens if token is not None]) > 1:
        raise OptionError("set only one of token, tokenFile, tokenFunction and the header authorization")
    if options.client_key is not None and options.client_certificate is None:
        raise OptionError("clientKey needs clientCertificate; set both, or set clientCertificate to a file with both")
    if (options.ca_file or options.client_certificate) and not options.url.startswith("https://"):
        raise OptionError("caFile and clientCertificate need a url with https")
    for name, value in options.headers.items():
        if not _HEADER.fullmatch(name) or name in _FRAMING:
            raise OptionError(f"the header {name[:80]!r} cannot be set")
        if not is_header_value(value):
            raise OptionError(f"the header {name} must be printable ASCII")
