"""Requests from bytes: httptools, with every limit on what a client may send. Nothing here knows of transports."""

from __future__ import annotations

import enum
from collections.abc import Callable

import httptools

from headwater.errors import (
    BadRequestError,
    BodyTooLargeError,
    HeadersTooLargeError,
    HeadwaterError,
    UrlTooLongError,
)
from headwater.limits import Limits
from headwater.protocol.streams import headers
from headwater.server.http import Request
from headwater.server.native.pipeline import Waiting

# Header names as most clients spell them, so that they need not be decoded for each request.
_NAMES = {
    spelling.encode(): name
    for name in (*headers.REQUEST_HEADERS, "host", "content-type", "content-length", "accept", "user-agent")
    for spelling in (name, name.title())
}
_HOP_BY_HOP = ("connection", "upgrade", "http2-settings")


class Phase(enum.Enum):
    """How much of the next request has been received."""

    NOTHING = enum.auto()
    HEAD = enum.auto()  # a part of its head
    BODY = enum.auto()  # its head, and perhaps a part of its body
    FAILED = enum.auto()  # something that is no request, or none within the limits


# Names of their own, since they are faster in Python 3.11.
NOTHING = Phase.NOTHING
HEAD = Phase.HEAD
BODY = Phase.BODY
FAILED = Phase.FAILED


class RequestParser:
    """Gives each complete request to `completed`, and tells how much of the next one it has.

    What a client did wrong is set as `error`, and the phase is `FAILED` from then on: what arrives is ignored, since
    where the next request begins is not known.
    """

    __slots__ = (
        "_body",
        "_completed",
        "_declined",
        "_head_bytes",
        "_headers",
        "_limits",
        "_parser",
        "_url",
        "body_bytes",
        "error",
        "phase",
    )

    def __init__(self, limits: Limits, completed: Callable[[Waiting], None]) -> None:
        self._limits = limits
        self._completed = completed
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._declined: bytes | None = None  # the head of a request that offers an upgrade, without the offer
        self.error: HeadwaterError | None = None
        self._reset()

    def _reset(self) -> None:
        self.phase = NOTHING
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.body_bytes = 0  # of the unfinished body
        self._head_bytes = 0

    def feed(self, data: bytes) -> None:
        if self.phase is FAILED or self._parser is None:
            return
        if self.phase is not BODY:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self.fail(BadRequestError(f"not well-formed HTTP/1.1: {error}"))
        if self.phase is HEAD and self._head_bytes > self._limits.header_bytes_max:
            self.fail(HeadersTooLargeError(self._header_limit()))

    def take_expectation(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body. True once for each request."""
        if self.phase is not BODY or self.body_bytes or self._parser is None:
            return False
        expected = self._headers.pop("expect", "").lower() == "100-continue"
        return expected and bool(self._parser.get_http_version() == "1.1")

    def fail(self, error: HeadwaterError) -> None:
        """Give up the unfinished request, and ignore what follows."""
        if self.error is None:
            self.error = error
            self.phase = FAILED
            self._body = []
            self.body_bytes = 0

    def close(self) -> None:
        """Drop what was received and break the reference cycle with httptools."""
        self._parser = None
        self._reset()

    def _decline(self, rest: bytes) -> None:
        """Decline an upgrade by answering in HTTP/1.1. httptools takes what follows for another protocol, so another
        parser gets the request once more, without the offer."""
        head, self._declined = self._declined, None
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        if not head:
            self.fail(BadRequestError("CONNECT is not offered"))
        else:
            self.feed(head + rest)

    # Called by httptools

    def on_message_begin(self) -> None:
        if self.phase is NOTHING:
            self.phase = HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes_max:
            self.fail(UrlTooLongError(f"the URL may have {self._limits.url_bytes_max} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            self._count_trailer(name, value)
            return
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def _count_trailer(self, name: bytes, value: bytes) -> None:
        """Trailers have no meaning here; they count as headers."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.header_bytes_max:
            self.fail(HeadersTooLargeError(self._header_limit()))

    def on_headers_complete(self) -> None:
        if self.phase is FAILED:
            return
        self.phase = BODY
        given, limits = self._headers, self._limits
        if self._parser is not None and self._parser.should_upgrade():
            self._declined = self._head_without_upgrade(self._parser.get_method())
            return
        if self._head_bytes > limits.header_bytes_max and sum(map(len, given.values())) > limits.header_bytes_max:
            self.fail(HeadersTooLargeError(self._header_limit()))
            return
        length = given.get("content-length")
        if length is not None and length.isdecimal() and int(length) > limits.body_bytes_max:
            self.fail(BodyTooLargeError(self._body_limit()))

    def _head_without_upgrade(self, method: bytes) -> bytes:
        if method == b"CONNECT":
            return b""  # nothing is left of it
        lines = [method + b" " + self._url + b" HTTP/1.1"]
        for name, value in self._headers.items():
            if name not in _HOP_BY_HOP:
                lines.append(f"{name}: {value}".encode("latin-1"))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_body(self, body: bytes) -> None:
        if self.phase is FAILED:
            return
        self.body_bytes += len(body)
        if self.body_bytes > self._limits.body_bytes_max:
            self.fail(BodyTooLargeError(self._body_limit()))
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self.phase is FAILED or self._parser is None or self._declined is not None:
            return
        body = self._body
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode("latin-1"),
            path,
            query,
            self._headers,
            b"" if not body else body[0] if len(body) == 1 else b"".join(body),
            self._parser.get_http_version(),
        )
        keep_alive = self._parser.should_keep_alive()
        self._reset()
        if not request.path.startswith("/"):
            request.path = _origin_form(request.path)
        if request.version == "1.1" and "host" not in request.headers:
            self.fail(BadRequestError("an HTTP/1.1 request needs a Host header"))
        else:
            self._completed((request, keep_alive))

    def _header_limit(self) -> str:
        return f"the headers may have {self._limits.header_bytes_max} bytes"

    def _body_limit(self) -> str:
        return f"a body may have {self._limits.body_bytes_max} bytes"


def _origin_form(target: str) -> str:
    """The path of a target in absolute form, as proxies send it. `*` stays as it is and finds no route."""
    _, scheme, rest = target.partition("://")
    return f"/{rest.partition('/')[2]}" if scheme else target
