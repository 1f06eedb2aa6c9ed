"""Flows of single requests: create, head, append, close, delete, fork, list, splits, record times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from headwater.client import retaining
from headwater.client.answers import integer, required
from headwater.client.codecs import body_of, encoder_of
from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.retaining import CompactionReport, creation_headers, known, retention_of
from headwater.client.session import Session, exchange, with_query
from headwater.errors import (
    MethodNotAllowedError,
    MissingExtensionError,
    ProtocolError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownRouteError,
)
from headwater.log.content import DEFAULT_CONTENT_TYPE
from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Retention
from headwater.positions import NOW
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.state.view_headers import format_stream_view
from headwater.protocol.streams import headers
from headwater.protocol.streams.composing import COMPOSE_TYPE
from headwater.protocol.streams.paths import RESERVED


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a stream."""

    path: str
    content_type: str
    tail_offset: str
    first_offset: str | None = None  # where it begins, if the server tells it
    bytes: int | None = None  # from the list only
    closed: bool = False
    created_at: str | None = None  # from the list only
    ttl_seconds: int | None = None
    expires_at: str | None = None
    retention: Retention | None = None  # what is kept of it; None: everything
    composes: bool = False  # from `head` only: whether the server composes appends to it from other streams


class AppendResult(msgspec.Struct, frozen=True):
    """The tail of the stream after an append. `duplicate` if the server already had it from this producer."""

    offset: str
    duplicate: bool = False


class Splits(msgspec.Struct, frozen=True):
    """Offsets in a range of a stream where a read may start or end, and the size of the range in bytes."""

    offset: str
    until: str
    bytes: int
    splits: list[str]
    snapshot_next: str | None = None  # where the stream continues, if `offset` is in the snapshot with which it begins


class RecordInfo(msgspec.Struct, frozen=True):
    """One record, of one or more messages: where it starts and ends, and when the server stored it, in UTC."""

    offset: str
    next_offset: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]


class RecordPage(msgspec.Struct):
    """Records in a range of a stream, from `offset`."""

    offset: str
    next_offset: str
    up_to_date: bool
    records: list[RecordInfo]

    def continues_at(self, until: str | None) -> str | None:
        """Where the next page begins; None if this is the last one."""
        is_last = self.up_to_date or not self.records or self.next_offset == until
        return None if is_last else self.next_offset


class RecordTimes(msgspec.Struct, frozen=True):
    """The times of the records in a range of a stream, as columns: the end of each record in bytes after `offset`, and
    the time when it was stored in milliseconds since 1970."""

    offset: str
    next_offset: str
    up_to_date: bool
    ends: list[int]
    times_ms: list[int]

    def continues_at(self, until: str | None) -> str | None:
        """Where the next page begins; None if this is the last one."""
        is_last = self.up_to_date or not self.ends or self.next_offset == until
        return None if is_last else self.next_offset


Page = TypeVar("Page", RecordPage, RecordTimes)


class SignedUrl(msgspec.Struct, frozen=True):
    """A URL with which anyone can read one stream or table, or append to it, until it expires."""

    url: str
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)]


class StreamPage(msgspec.Struct):
    streams: list[StreamInfo]
    next_after: str | None = None


def create(
    session: Session,
    url: str,
    content_type: str | None,
    *,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
    closed: bool = False,
    messages: Iterable[Any] = (),
    extra_headers: dict[str, str] | None = None,
    retention: Retention | None = None,
) -> Flow[bool]:
    """Create a stream. False if it exists with the same configuration. `extra_headers` make it a fork or a view."""
    request_headers = {**(extra_headers or {}), **creation_headers(retention)}
    if content_type is not None:
        request_headers["content-type"] = content_type
    if ttl_s is not None:
        request_headers[headers.TTL] = str(ttl_s)
    if expires_at is not None:
        request_headers[headers.EXPIRES_AT] = instant(expires_at)
    if closed:
        request_headers[headers.CLOSED] = "true"
    encode = encoder_of(content_type or DEFAULT_CONTENT_TYPE)
    _check_several(messages)
    encoded = [encode(message) for message in messages]
    body = body_of(content_type or DEFAULT_CONTENT_TYPE, encoded) if encoded else b""
    request = HttpRequest("PUT", url, request_headers, body)
    reply = yield from exchange(session, request)
    required(request, reply, headers.NEXT_OFFSET)
    return reply.status == 201


def fork(
    session: Session,
    url: str,
    source: str,
    *,
    offset: str | None = None,
    sub_offset: int = 0,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
    retention: Retention | None = None,
) -> Flow[bool]:
    fork_headers = {headers.FORKED_FROM: urlsplit(source).path}
    if offset is not None:
        fork_headers[headers.FORK_OFFSET] = offset
    if sub_offset:
        fork_headers[headers.FORK_SUB_OFFSET] = str(sub_offset)
    return create(
        session, url, None, ttl_s=ttl_s, expires_at=expires_at, extra_headers=fork_headers, retention=retention
    )


def view_headers(source: str | None, entity_type: str | None, record: RecordFormat) -> dict[str, str]:
    """The headers that make a stream a view of a table; none if it is not a view."""
    check_view(source, entity_type)
    return format_stream_view(urlsplit(source).path, entity_type, record) if source and entity_type else {}


def check_view(source: str | None, entity_type: str | None) -> None:
    if bool(source) != bool(entity_type):
        raise ValueError("a view needs view_of, the URL of its source, and entity_type")


def current(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """Send a HEAD request for the tail of a stream or table, and make sure that no cache answers it with an old tail.

    Its URL must be one at which GET responds with the same headers, because nginx, Varnish and others send GET for
    HEAD, or answer HEAD with a stored response to GET. A response with an age is from a cache: then GET is sent, with a
    demand to revalidate.
    """
    reply = yield from exchange(session, request)
    if not integer(reply, "age"):  # Varnish also adds `Age: 0` to responses that it did not store
        return reply
    request_headers = {**request.headers, "cache-control": "no-cache"}
    reply = yield from exchange(session, msgspec.structs.replace(request, method="GET", headers=request_headers))
    if integer(reply, "age"):
        age_s = reply.headers["age"]
        error = ProtocolError(f"a cache sent a response that is {age_s} s old; let it honour Cache-Control: no-store")
        error.url = request.url
        raise error
    return reply


def head(session: Session, url: str) -> Flow[StreamInfo]:
    request = HttpRequest("HEAD", with_query(url, offset=NOW))
    reply = yield from current(session, request)
    return StreamInfo(
        path=path_of(session, url) or unquote(urlsplit(url).path),
        content_type=reply.headers.get("content-type", DEFAULT_CONTENT_TYPE),
        tail_offset=required(request, reply, headers.NEXT_OFFSET),
        first_offset=reply.headers.get(headers.FIRST_OFFSET),
        closed=headers.parse_closed(reply.headers),
        ttl_seconds=integer(reply, headers.TTL),
        expires_at=reply.headers.get(headers.EXPIRES_AT),
        retention=retention_of(request, reply),
        composes=COMPOSE_TYPE in reply.headers.get(headers.ACCEPT_POST, ""),
    )


def append_request(
    url: str,
    content_type: str,
    body: bytes,
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
    if_tail: str | int | None = None,
) -> HttpRequest:
    request_headers = {"content-type": content_type}
    if seq is not None:
        request_headers[headers.SEQ] = seq
    if producer is not None:
        request_headers[headers.PRODUCER_ID] = producer.id
        request_headers[headers.PRODUCER_EPOCH] = str(producer.epoch)
        request_headers[headers.PRODUCER_SEQ] = str(producer.seq)
    if close:
        request_headers[headers.CLOSED] = "true"
    request_headers |= condition(if_tail)
    return HttpRequest("POST", url, request_headers, body)


def condition(if_tail: str | int | None) -> dict[str, str]:
    """The header of a write that the server must refuse if the stream or table does not end there."""
    return {} if if_tail is None else {headers.IF_MATCH: f'"{if_tail}"'}


def append(
    session: Session,
    url: str,
    content_type: str,
    messages: Iterable[Any],
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
    if_tail: str | None = None,
) -> Flow[AppendResult]:
    """Append messages in one request. Without a producer it is not retried if it may have been stored.

    With `if_tail` a retry could not store it twice. But the response could not tell whether the first attempt or
    another writer has moved the tail.
    """
    _check_several(messages)
    encoded = list(map(encoder_of(content_type), messages))
    if not encoded and not close:
        raise ValueError("nothing to append")
    body = body_of(content_type, encoded) if encoded else b""
    return (
        yield from append_body(
            session, url, content_type, body, seq=seq, producer=producer, close=close, if_tail=if_tail
        )
    )


def _check_several(messages: Iterable[Any]) -> None:
    """Refuse one message in place of several: its characters or keys would be appended."""
    if isinstance(messages, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"expected a list of messages, got one {type(messages).__name__}; put it into a list")


def append_body(
    session: Session,
    url: str,
    content_type: str,
    body: bytes,
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
    if_tail: str | None = None,
) -> Flow[AppendResult]:
    request = append_request(url, content_type, body, seq=seq, producer=producer, close=close, if_tail=if_tail)
    reply = yield from exchange(session, request, repeatable=producer is not None or not body)
    return appended(request, reply, producer)


def appended(request: HttpRequest, reply: HttpReply, producer: ProducerTuple | None) -> AppendResult:
    # The reference server sends no offset for a duplicate, and any server may send none for a close.
    required(request, reply, headers.NEXT_OFFSET, headers.PRODUCER_EPOCH, headers.CLOSED)
    duplicate = producer is not None and reply.status == 204 and bool(request.body)
    return AppendResult(reply.headers.get(headers.NEXT_OFFSET, ""), duplicate)


def delete(session: Session, url: str, *, if_tail: str | int | None = None, guarded: bool = False) -> Flow[None]:
    try:
        yield from exchange(session, HttpRequest("DELETE", url, condition(if_tail), guarded=guarded))
    except (StreamNotFoundError, StreamGoneError) as error:
        if error.attempts == 1:  # otherwise an earlier attempt succeeded and its response was lost
            raise


def list_page(session: Session, prefix: str, after: str | None, limit: int) -> Flow[StreamPage]:
    url = with_query(f"{session.root}{RESERVED}/streams", prefix=prefix or None, after=after, limit=str(limit))
    reply = yield from exchange(session, HttpRequest("GET", url))
    try:
        return msgspec.json.decode(reply.body, type=StreamPage)
    except UNREADABLE as error:
        raise ProtocolError(f"this server has no list of streams: {reason_of(error)}") from None


def splits(
    session: Session,
    url: str,
    *,
    offset: str,
    until: str | None,
    parts: int | None,
    part_bytes: int | None,
    limit: int | None,
) -> Flow[Splits]:
    path = own_path(session, url)
    numbers = {"parts": parts, "bytes": part_bytes, "limit": limit}
    query = {name: str(number) for name, number in numbers.items() if number is not None}
    splits_url = with_query(f"{session.root}{RESERVED}/splits", path=path, offset=offset, until=until, **query)
    reply = yield from exchange(session, HttpRequest("GET", splits_url))
    try:
        return msgspec.json.decode(reply.body, type=Splits)
    except UNREADABLE as error:
        raise ProtocolError(f"this server does not split streams: {reason_of(error)}") from None


def record_page(session: Session, url: str, offset: str, until: str | None, limit: int) -> Flow[RecordPage]:
    return _record_page(session, url, RecordPage, offset=offset, until=until, limit=str(limit))


def record_times(session: Session, url: str, offset: str, until: str | None, limit: int) -> Flow[RecordTimes]:
    query = {"offset": offset, "until": until, "limit": str(limit), "compact": "true"}
    return _record_page(session, url, RecordTimes, **query)


def sign(session: Session, url: str, *, append: bool, expires_s: int) -> Flow[SignedUrl]:
    if not url.startswith((session.root, session.table_root)):
        raise ValueError(f"not a stream or table of this client's server: {url}")
    query = {"url": urlsplit(url).path, "expires": str(expires_s), "action": "append" if append else "read"}
    request = HttpRequest("POST", with_query(f"{session.root}{RESERVED}/sign", **query))
    try:
        reply = yield from exchange(session, request)
        return msgspec.json.decode(reply.body, type=SignedUrl)
    except (UnknownRouteError, MethodNotAllowedError, *UNREADABLE) as error:
        raise ProtocolError(f"this server does not sign URLs: {error}") from None


def trim(session: Session, url: str, before: str | datetime) -> Flow[str]:
    """Trim a stream, and return where it begins."""
    query = {"path": own_path(session, url), "before": instant(before, "before")}
    request = HttpRequest("POST", with_query(f"{session.root}{RESERVED}/trim", **query))
    reply = yield from known(session, request)
    return required(request, reply, headers.FIRST_OFFSET)


def compact(session: Session, url: str) -> Flow[CompactionReport]:
    path = own_path(session, url)
    return (yield from retaining.compact(session, with_query(f"{session.root}{RESERVED}/compact", path=path)))


def offset_at(session: Session, url: str, time: datetime) -> Flow[str]:
    page = yield from _record_page(session, url, RecordPage, at=record_moment(time), limit="1")
    return page.offset


def _record_page(session: Session, url: str, kind: type[Page], **query: str | None) -> Flow[Page]:
    page_url = with_query(f"{session.root}{RESERVED}/records", path=own_path(session, url), **query)
    try:
        reply = yield from exchange(session, HttpRequest("GET", page_url))
        return msgspec.json.decode(reply.body, type=kind)
    except StreamNotFoundError as error:
        yield from head(session, url)  # raises if the stream itself does not exist
        reason: Exception = error
    except (UnknownRouteError, MethodNotAllowedError) as error:
        reason = error
    except UNREADABLE as error:
        raise ProtocolError(f"this server does not offer record times: {error}") from None
    raise MissingExtensionError(f"this server does not offer record times: {reason}")


def record_moment(time: datetime) -> str:
    """A time in milliseconds, the precision of record times. It is rounded up, so that no earlier record matches."""
    if time.tzinfo is None:
        raise ValueError(f"the time needs a time zone, such as datetime.now(UTC); got {time.isoformat()}")
    try:
        moment = time.astimezone(UTC)
        moment += timedelta(microseconds=-moment.microsecond % 1000)
    except OverflowError:
        raise ValueError(f"the time is out of range: {time.isoformat()}") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(moment: datetime | str, name: str = "expires_at") -> str:
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{name} needs a time zone")
    return headers.format_instant(int(moment.astimezone(UTC).timestamp() * 1000))


def own_path(session: Session, url: str) -> str:
    path = path_of(session, url)
    if path is None:
        raise ValueError(f"not a stream of this client's server: {url}")
    return path


def path_of(session: Session, url: str) -> str | None:
    """A stream's path on the client's server; None if it is on another server."""
    root = session.root
    return unquote(urlsplit(url).path[len(urlsplit(root).path) :]) if url.startswith(root) else None
