"""Parses requests with httptools, within the limits. It does not use transports."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable

import httptools
import msgspec

from headwater.errors import (
    BadRequestError,
    BodyTooLargeError,
    HeadersTooLargeError,
    HeadwaterError,
    InternalError,
    OutOfMemoryError,
)
from headwater.joining import Joined
from headwater.limits import (
    HEAD_KNOWN_BYTES_MAX,
    HEADERS_MAX,
    HEADS_KNOWN_MAX,
    HEADS_PASSED,
    PARSE_PIECES_MAX,
    PARSE_STEP_BYTES,
    Limits,
)
from headwater.protocol.streams.headers import PRODUCER_SEQ, REQUEST_HEADERS
from headwater.server.http import Buffer, Request, transfer_encoding_fault, url_fault
from headwater.server.native.pipeline import Waiting, memory_of_head

log = logging.getLogger("headwater.server")

# Common header names and methods, so that they are not decoded for each request.
_NAMES = {
    spelling.encode(): name
    for name in (*REQUEST_HEADERS, "host", "content-type", "content-length", "accept", "authorization", "user-agent")
    for spelling in (name, name.title())
}
_METHODS = {method.encode(): method for method in ("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT")}
_UPGRADE = ("upgrade", "http2-settings")  # headers and options of Connection that offer another protocol
# A request line whose parts can be taken as they are: its path is the one that the parser would find.
_POST_LINE = re.compile(rb"POST (/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*) HTTP/1\.1\r\n")
_NEVER_KNOWN = frozenset(("expect", "transfer-encoding", PRODUCER_SEQ, *_UPGRADE))


class RequestPhase(enum.Enum):
    """How much of the next request has been received."""

    NOTHING = enum.auto()
    HEAD = enum.auto()  # a part of its head
    BODY = enum.auto()  # its head, and perhaps a part of its body
    FAILED = enum.auto()  # invalid, or over a limit
    ENDED = enum.auto()  # no more data will arrive


# Module constants are faster than enum members in Python 3.11.
NOTHING = RequestPhase.NOTHING
HEAD = RequestPhase.HEAD
BODY = RequestPhase.BODY
FAILED = RequestPhase.FAILED
ENDED = RequestPhase.ENDED
_INCOMPLETE = (HEAD, BODY)


class _KnownHead(msgspec.Struct, frozen=True, gc=False):
    method: str
    path: str
    query: str
    headers: dict[str, str]  # shared by the requests with this head; nothing changes the headers of a request
    version: str
    body_bytes: int


class KnownHeads(dict[bytes, _KnownHead]):
    """Heads of POST requests that were parsed and accepted, of all connections of an edge.

    A client that appends sends the same head again and again, or the same headers for other paths. To find a head here
    takes a fifth of the time that it takes to parse it, to find its headers two fifths. Clients choose heads, so their
    number and size are bounded. A head with Producer-Seq does not repeat.

    If there is no room, few of the heads that have known headers replace another one: if requests go to many paths, a
    head is replaced before it arrives again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_headers: dict[bytes, _KnownHead] = {}  # the same, by all that follows the request line
        self._passed = 0  # heads that were not kept since the last one that was

    def note(self, data: bytes, request: Request) -> bool:
        """Note the head of a request that was all of the data. False if such requests do not repeat."""
        if request.method != "POST" or not _NEVER_KNOWN.isdisjoint(request.headers):
            return False
        end = data.find(b"\r\n\r\n") + 4
        if end <= HEAD_KNOWN_BYTES_MAX and "content-length" in request.headers and data[end:] == request.body:
            size = len(request.body)
            known = _KnownHead(request.method, request.path, request.query, request.headers, request.version, size)
            _keep(self, data[:end], known)
            line = _POST_LINE.match(data)
            if line is not None:
                _keep(self._of_headers, data[line.end() : end], known)
        return True

    def at_other_path(self, data: bytes, end: int, url_bytes_max: int) -> tuple[_KnownHead, str] | None:
        """A known head with the headers of the head at the beginning of the data, and the path of the latter, if both
        differ only in their paths. There is no query then."""
        line = _POST_LINE.match(data)
        if line is None or line.end(1) - line.start(1) > url_bytes_max or end > HEAD_KNOWN_BYTES_MAX:
            return None
        similar = self._of_headers.get(data[line.end() : end])
        if similar is None:
            return None
        path = line[1].decode("ascii")
        if len(self) < HEADS_KNOWN_MAX or self._passed == HEADS_PASSED:
            known = _KnownHead(similar.method, path, "", similar.headers, similar.version, similar.body_bytes)
            _keep(self, data[:end], known)
            self._passed = 0
        else:
            self._passed += 1
        return similar, path


def _keep(heads: dict[bytes, _KnownHead], data: bytes, head: _KnownHead) -> None:
    if len(heads) >= HEADS_KNOWN_MAX:
        del heads[next(iter(heads))]  # the oldest
    heads[data] = head


class RequestParser:
    """Passes each complete request to `completed`. `phase` tells how much of the next one has arrived.

    After invalid input, `error` is set and the phase stays `FAILED`: further data is ignored, because the start of the
    next request is unknown.
    """

    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_completed",
        "_declined",
        "_head_bytes",
        "_headers",
        "_heads",
        "_limits",
        "_overhead_bytes",
        "_parser",
        "_pieces",
        "_repeated",
        "_repeats",
        "_url",
        "_whole",
        "body_bytes",
        "error",
        "head_accepted",
        "phase",
    )

    def __init__(self, limits: Limits, completed: Callable[[Waiting], None], heads: KnownHeads | None = None) -> None:
        self._limits = limits
        self._completed = completed
        self._heads = KnownHeads() if heads is None else heads
        self._repeats = True  # the client may send a head again
        self._whole = b""  # what is being parsed, if it begins with a request
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._declined: bytes | None = None  # the head of a request that offers an upgrade, without the offer
        self.error: HeadwaterError | None = None
        self._pieces = 0  # chunks and requests in the last step
        self._reset()

    def _reset(self) -> None:
        self.phase = NOTHING
        self._url = b""
        self._headers: dict[str, str] = {}
        self._repeated = 0  # headers with the name of an earlier one
        self._body: Joined | bytes = b""  # bytes while it is one piece
        self.body_bytes = 0  # of the unfinished body
        self._overhead_bytes = 0  # of the head, or since the last piece of the body
        self._head_bytes = 0  # memory of the head, once it is complete and was asked for
        self.head_accepted = False  # the body may be read
        self._body_bytes_max = self._limits.body_bytes_max

    def feed(self, data: Buffer) -> Buffer:
        """Parse received bytes in steps, and return the rest if it has to wait.

        The size of a step limits the precision of `_overhead_bytes`. A step with many small chunks or requests takes
        much longer than others. Then the rest is returned, so that other connections get their turn.
        """
        self._pieces = 0
        if len(data) <= PARSE_STEP_BYTES:
            self._whole = bytes(data) if self.phase is NOTHING and self._repeats else b""
            self._step(data)
            self._whole = b""
            return b""
        for start in range(0, len(data), PARSE_STEP_BYTES):
            if self._pieces > PARSE_PIECES_MAX:
                return data[start:]
            self._pieces = 0
            self._step(data[start : start + PARSE_STEP_BYTES])
        return b""

    def repeated(self, received: Buffer) -> Request | None:
        """The request, if what was received is a known head, maybe with another path, and exactly its body. The
        connection stays open after it. Otherwise nothing is parsed."""
        if self.phase is not NOTHING or not self._repeats or len(received) > PARSE_STEP_BYTES:
            return None
        data = received.tobytes() if isinstance(received, memoryview) else received  # faster than bytes(received)
        end = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:end])
        if known is not None:
            path, query = known.path, known.query
        else:
            similar = self._heads.at_other_path(data, end, self._limits.url_bytes_max)
            if similar is None:
                return None
            known, path = similar
            query = ""
        if len(data) - end != known.body_bytes:
            return None
        return Request(known.method, path, query, known.headers, data[end:], known.version)

    @property
    def crowded(self) -> bool:
        """Whether the last step had many small pieces."""
        return self._pieces > PARSE_PIECES_MAX

    def _step(self, data: Buffer) -> None:
        parser = self._parser
        if parser is None:
            return  # no more data is expected
        self._overhead_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrades(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self.fail(_fault(error))
        too_many = len(self._headers) + self._repeated > HEADERS_MAX
        headers_bytes = self._overhead_bytes - len(self._url)
        if (too_many or headers_bytes > self._limits.header_bytes_max) and self.phase in _INCOMPLETE:
            self.fail(_too_many_headers() if too_many else _headers_too_large(self._limits))

    @property
    def head_bytes(self) -> int:
        """The approximate memory of the unfinished request without its body. The start of a head within a step is
        unknown."""
        if self.phase is HEAD:
            return memory_of_head(self._headers) + (self._overhead_bytes or PARSE_STEP_BYTES)
        if self.phase is BODY and not self._head_bytes:
            self._head_bytes = memory_of_head(self._headers)
        return self._head_bytes

    def head(self) -> Request:
        """The request whose body is incomplete, without its body."""
        if self._parser is None:
            raise RuntimeError("there is no request")
        return self._request(self._parser, b"")

    def accept_head(self, body_bytes_max: int) -> None:
        """The body of the unfinished request may be read, up to this size."""
        self.head_accepted = True
        self._body_bytes_max = body_bytes_max
        self._check_body_size()

    def _check_body_size(self) -> None:
        if self.body_bytes > self._body_bytes_max:
            self.fail(_body_too_large(self._body_bytes_max))

    def _decline_upgrades(self, rest: Buffer) -> None:
        """Decline upgrades: the response is HTTP/1.1. After an offer, httptools treats the rest as another protocol, so
        another parser gets the request again without the offer, and then the rest."""
        while self.phase is not FAILED:
            head, self._declined = self._declined, None
            if not head:
                self.fail(BadRequestError("CONNECT is not offered"))
                return
            self._reset()
            self._parser = parser = httptools.HttpRequestParser(self)
            try:
                parser.feed_data(head)
                parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self.fail(_fault(error))

    def end(self) -> None:
        """No more data will arrive: an unfinished request stays unfinished."""
        if self.phase is not FAILED:
            self.close()
            self.phase = ENDED

    def take_expectation(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body. True once for each request."""
        if self.phase is not BODY or self.body_bytes or self._parser is None:
            return False
        expected = self._headers.pop("expect", "").lower() == "100-continue"
        return expected and bool(self._parser.get_http_version() == "1.1")

    def fail(self, error: HeadwaterError) -> None:
        """Drop the unfinished request, and ignore further data."""
        if self.error is None:
            self.error = error
            self.close()
            self.phase = FAILED

    def close(self) -> None:
        """Release received data and break the reference cycle with httptools."""
        self._parser = None
        self._repeats = False
        self._reset()

    # Called by httptools

    def on_message_begin(self) -> None:
        if self.phase is NOTHING:
            self.phase = HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes_max:
            path = self._url.partition(b"?")[0].decode("latin-1")
            error = url_fault(path, len(self._url), self._limits)
            if error is not None:
                self.fail(error)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            self._count_trailer(name, value)
            return
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        known = self._headers.get(key)
        if known is None:
            self._headers[key] = text
        elif key == "host":
            self.fail(BadRequestError("a request has one Host header"))
        else:
            self._repeated += 1
            if self._repeated <= HEADERS_MAX:
                self._headers[key] = f"{known}, {text}"

    def _count_trailer(self, name: bytes, value: bytes) -> None:
        """Trailers are ignored, but count towards the limits of headers."""
        self._overhead_bytes += len(name) + len(value)
        if self._overhead_bytes > self._limits.header_bytes_max:
            self.fail(_headers_too_large(self._limits))

    def on_headers_complete(self) -> None:
        if self.phase is FAILED:
            return
        self.phase = BODY
        headers, limits = self._headers, self._limits
        if len(headers) + self._repeated > HEADERS_MAX:
            self.fail(_too_many_headers())
            return
        if self._parser is None:
            return
        if "transfer-encoding" in headers:
            error = transfer_encoding_fault(headers["transfer-encoding"], self._parser.get_http_version())
            if error is not None:
                self.fail(error)
                return
        if self._parser.should_upgrade():
            self._declined = self._head_without_upgrade(self._parser)
            return
        if self._overhead_bytes > limits.header_bytes_max and _size(headers) > limits.header_bytes_max:
            self.fail(_headers_too_large(self._limits))
            return
        length = headers.get("content-length")
        if length is not None and length.isdecimal() and int(length) > limits.body_bytes_max:  # httptools bounds it
            self.fail(_body_too_large(limits.body_bytes_max))

    def _head_without_upgrade(self, parser: httptools.HttpRequestParser) -> bytes:
        method = parser.get_method()
        if method == b"CONNECT":
            return b""  # nothing remains
        lines = [b"%b %b HTTP/%b" % (method, self._url, parser.get_http_version().encode())]
        for name, value in self._headers.items():
            if name == "connection":  # `close` and `keep-alive` stay
                options = [option for option in value.split(",") if option.strip().lower() not in _UPGRADE]
                value = ",".join(options).strip()
            if name not in _UPGRADE:
                lines.append(f"{name}: {value}".encode("latin-1"))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_body(self, body: bytes) -> None:
        if self.phase is FAILED:
            return
        self._overhead_bytes = 0
        self.body_bytes += len(body)
        self._check_body_size()
        if self.phase is FAILED:
            return
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = Joined(self._body)
            self._body.add(body)

    def on_chunk_header(self) -> None:
        self._overhead_bytes = 0
        self._pieces += 1

    def on_message_complete(self) -> None:
        parser, body = self._parser, self._body
        if self.phase is FAILED or parser is None or self._declined is not None:
            return
        self._pieces += 1
        request = self._request(parser, body if isinstance(body, bytes) else body.take())
        self._reset()
        if "host" not in request.headers and request.version == "1.1":
            self.fail(BadRequestError("an HTTP/1.1 request needs a Host header"))
        else:
            keep_alive = parser.should_keep_alive()
            if self._whole and self._pieces == 1:
                self._repeats = keep_alive and self._heads.note(self._whole, request)
            self._completed((request, keep_alive))

    def _request(self, parser: httptools.HttpRequestParser, body: bytes) -> Request:
        method = parser.get_method()
        path, _, query = self._url.decode("latin-1").partition("?")
        if not path.startswith("/"):
            path = _origin_form(path)
        return Request(
            _METHODS.get(method) or method.decode("latin-1"),
            path,
            query,
            self._headers,
            body,
            parser.get_http_version(),
        )


def _origin_form(target: str) -> str:
    """The path of a target in absolute form, as proxies send it. `*` stays as it is and finds no route."""
    _, scheme, rest = target.partition("://")
    return f"/{rest.partition('/')[2]}" if scheme else target


def _size(headers: dict[str, str]) -> int:
    return sum([len(name) + len(value) + len(": \r\n") for name, value in headers.items()])


def _headers_too_large(limits: Limits) -> HeadwaterError:
    return HeadersTooLargeError(f"the headers may have {limits.header_bytes_max} bytes")


def _too_many_headers() -> HeadwaterError:
    return HeadersTooLargeError(f"a request may have {HEADERS_MAX} headers")


def _body_too_large(bytes_max: int) -> HeadwaterError:
    return BodyTooLargeError(f"the body of this request may have {bytes_max} bytes")


def _fault(error: Exception) -> HeadwaterError:
    """The error for what httptools raised: for invalid input, or because one of the callbacks above failed."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return BadRequestError(f"not well-formed HTTP/1.1: {error}")
    if isinstance(error.__context__, MemoryError):
        return OutOfMemoryError("there was no memory for the request; nothing was stored")
    log.error("a request could not be parsed", exc_info=error.__context__)
    return InternalError("the server log has the cause")
