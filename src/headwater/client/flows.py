"""The requests that are answered at once: create, head, append, close, delete, fork, list."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from headwater.client.answers import required
from headwater.client.codecs import body_of, encoder_of
from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.session import Session, exchange, with_query
from headwater.errors import ProtocolError, StreamGoneError, StreamNotFoundError
from headwater.log.content import DEFAULT_CONTENT_TYPE
from headwater.log.producers import ProducerTuple
from headwater.protocol.streams import headers
from headwater.protocol.streams.paths import RESERVED


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of a stream."""

    path: str
    content_type: str
    tail_offset: str
    closed: bool = False
    created_at: str | None = None  # from the list only
    ttl_seconds: int | None = None
    expires_at: str | None = None


class Appended(msgspec.Struct, frozen=True):
    """Where the stream ends after an append; `duplicate` if the server had it already from this producer."""

    offset: str
    duplicate: bool = False


class Splits(msgspec.Struct, frozen=True):
    """Places in a range of a stream where a read may begin or end, and how many bytes the range has."""

    offset: str
    until: str
    bytes: int
    splits: list[str]


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
    forked: dict[str, str] | None = None,
) -> Flow[bool]:
    """Make a stream. False if it was there already, made alike."""
    given = dict(forked or {})
    if content_type is not None:
        given["content-type"] = content_type
    if ttl_s is not None:
        given[headers.TTL] = str(ttl_s)
    if expires_at is not None:
        given[headers.EXPIRES_AT] = _instant(expires_at)
    if closed:
        given[headers.CLOSED] = "true"
    encode = encoder_of(content_type or DEFAULT_CONTENT_TYPE)
    encoded = [encode(message) for message in messages]
    body = body_of(content_type or DEFAULT_CONTENT_TYPE, encoded) if encoded else b""
    request = HttpRequest("PUT", url, given, body)
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
) -> Flow[bool]:
    given = {headers.FORKED_FROM: urlsplit(source).path}
    if offset is not None:
        given[headers.FORK_OFFSET] = offset
    if sub_offset:
        given[headers.FORK_SUB_OFFSET] = str(sub_offset)
    return create(session, url, None, ttl_s=ttl_s, expires_at=expires_at, forked=given)


def head(session: Session, url: str) -> Flow[StreamInfo]:
    request = HttpRequest("HEAD", url)
    reply = yield from exchange(session, request)
    ttl = reply.headers.get(headers.TTL)
    return StreamInfo(
        path=path_of(session, url) or unquote(urlsplit(url).path),
        content_type=reply.headers.get("content-type", DEFAULT_CONTENT_TYPE),
        tail_offset=required(request, reply, headers.NEXT_OFFSET),
        closed=headers.parse_closed(reply.headers),
        ttl_seconds=int(ttl) if ttl is not None and ttl.isdigit() else None,
        expires_at=reply.headers.get(headers.EXPIRES_AT),
    )


def append_request(
    url: str,
    content_type: str,
    body: bytes,
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
) -> HttpRequest:
    given = {"content-type": content_type}
    if seq is not None:
        given[headers.SEQ] = seq
    if producer is not None:
        given[headers.PRODUCER_ID] = producer.id
        given[headers.PRODUCER_EPOCH] = str(producer.epoch)
        given[headers.PRODUCER_SEQ] = str(producer.seq)
    if close:
        given[headers.CLOSED] = "true"
    return HttpRequest("POST", url, given, body)


def append(
    session: Session,
    url: str,
    content_type: str,
    messages: Iterable[Any],
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
) -> Flow[Appended]:
    """Append messages in one request. Without a producer it is not repeated when its fate is unknown."""
    encoded = list(map(encoder_of(content_type), messages))
    if not encoded and not close:
        raise ValueError("nothing to append")
    body = body_of(content_type, encoded) if encoded else b""
    return (yield from append_body(session, url, content_type, body, seq=seq, producer=producer, close=close))


def append_body(
    session: Session,
    url: str,
    content_type: str,
    body: bytes,
    *,
    seq: str | None = None,
    producer: ProducerTuple | None = None,
    close: bool = False,
) -> Flow[Appended]:
    request = append_request(url, content_type, body, seq=seq, producer=producer, close=close)
    reply = yield from exchange(session, request, repeatable=producer is not None or not body)
    return appended(request, reply, producer)


def appended(request: HttpRequest, reply: HttpReply, producer: ProducerTuple | None) -> Appended:
    # A duplicate has no offset at the reference server, and a close may have none anywhere.
    required(request, reply, headers.NEXT_OFFSET, headers.PRODUCER_EPOCH, headers.CLOSED)
    duplicate = producer is not None and reply.status == 204 and bool(request.body)
    return Appended(reply.headers.get(headers.NEXT_OFFSET, ""), duplicate)


def delete(session: Session, url: str) -> Flow[None]:
    try:
        yield from exchange(session, HttpRequest("DELETE", url))
    except (StreamNotFoundError, StreamGoneError) as error:
        if error.attempts == 1:  # else an earlier attempt did it, and its answer was lost
            raise


def list_page(session: Session, prefix: str, after: str | None, limit: int) -> Flow[StreamPage]:
    url = with_query(f"{session.root}{RESERVED}/streams", prefix=prefix or None, after=after, limit=str(limit))
    reply = yield from exchange(session, HttpRequest("GET", url))
    try:
        return msgspec.json.decode(reply.body, type=StreamPage)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"this server has no list of streams: {error}") from None


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
    path = path_of(session, url)
    if path is None:
        raise ValueError(f"not a stream of this client's server: {url}")
    numbers = {"parts": parts, "bytes": part_bytes, "limit": limit}
    query = {name: str(number) for name, number in numbers.items() if number is not None}
    asked = with_query(f"{session.root}{RESERVED}/splits", path=path, offset=offset, until=until, **query)
    reply = yield from exchange(session, HttpRequest("GET", asked))
    try:
        return msgspec.json.decode(reply.body, type=Splits)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"this server does not split streams: {error}") from None


def _instant(moment: datetime | str) -> str:
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError("expires_at needs a time zone")
    return headers.format_instant(int(moment.astimezone(UTC).timestamp() * 1000))


def path_of(session: Session, url: str) -> str | None:
    """A stream's path below the client's root; None if it is elsewhere."""
    root = session.root
    return unquote(urlsplit(url).path[len(urlsplit(root).path) :]) if url.startswith(root) else None
