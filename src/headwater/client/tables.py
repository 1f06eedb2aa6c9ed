"""Flows of single requests to tables: create, info, append, delete, list."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from headwater import limits
from headwater.client import flows, retaining
from headwater.client.answers import integer, required
from headwater.client.effects import CloseReply, Flow, HttpReply, HttpRequest
from headwater.client.retaining import CompactionReport, creation_headers, known, retention_of
from headwater.client.session import Session, exchange, opened, with_query
from headwater.errors import HeadwaterError, ProtocolError, StreamNotFoundError
from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Retention
from headwater.protocol.encodings import IDENTITY
from headwater.protocol.state.view_headers import format_table_view
from headwater.protocol.streams import headers
from headwater.protocol.streams.composing import COMPOSE_TYPE
from headwater.protocol.tables.changes import format_changes
from headwater.protocol.tables.content_type import TableType, format_table_type, parse_answer_type
from headwater.protocol.tables.headers import (
    AFTER_SEQNO,
    FIRST_SEQNO,
    LAST_SEQNO,
    MIRROR,
    parse_first_seqno,
    parse_gapless,
    parse_last_seqno,
    parse_mirror,
)
from headwater.protocol.tables.paths import COMPACT, RESERVED, TRIM
from headwater.protocol.tables.rows import ADD, DELETE, Action, Row, escaped, format_row

_NO_HEAD = (405, 501)  # Method Not Allowed, Not Implemented


class Put(msgspec.Struct, frozen=True):
    """A change that adds a key, or replaces its record."""

    key: str
    record: str


class Remove(msgspec.Struct, frozen=True):
    """A change that deletes a key; the record may say why."""

    key: str
    record: str = ""


Change: TypeAlias = Put | Remove | tuple[Action, str, str]
"""What `append` takes: `Put(key, record)`, `Remove(key)`, or the three fields `("+", key, record)`."""


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a table. `first_seqno` and `last_seqno` are None if the server does not send them."""

    name: str
    schema: str
    version: int
    first_seqno: int | None = None  # rows with smaller SeqNos were trimmed
    last_seqno: int | None = None
    bytes: int | None = None  # of all rows; from the list only
    gapless: bool = False  # from info only
    mirror: bool = False  # from info only
    closed: bool = False
    created_at: str | None = None  # from the list only
    ttl_seconds: int | None = None
    expires_at: str | None = None
    retention: Retention | None = None  # what is kept of it; None: everything


class AppendedRows(msgspec.Struct, frozen=True):
    """The SeqNo of the table's last row after an append. `duplicate` if the server already had the append."""

    last_seqno: int
    duplicate: bool = False


class TablePage(msgspec.Struct):
    tables: list[TableInfo]
    next_after: str | None = None


def _request(method: str, url: str, request_headers: dict[str, str] | None = None, body: bytes = b"") -> HttpRequest:
    return HttpRequest(method, url, {"accept-encoding": IDENTITY, **(request_headers or {})}, body, guarded=True)


def create(
    session: Session,
    url: str,
    table: TableType,
    *,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
    mirror: bool = False,
    attempts_max: int | None = None,
    view: dict[str, str] | None = None,
    retention: Retention | None = None,
) -> Flow[bool]:
    """Create a table. False if it exists with the same configuration."""
    request_headers = {"content-type": format_table_type(table), **(view or {}), **creation_headers(retention)}
    if ttl_s is not None:
        request_headers[headers.TTL] = str(ttl_s)
    if expires_at is not None:
        request_headers[headers.EXPIRES_AT] = flows.instant(expires_at)
    if mirror:
        request_headers[MIRROR] = "true"
    reply = yield from exchange(session, _request("PUT", url, request_headers), attempts_max=attempts_max)
    return reply.status == 201


def view_headers(source: str | None, entity_type: str | None) -> dict[str, str]:
    """The headers that make a table a view of a stream; none if it is not a view."""
    flows.check_view(source, entity_type)
    return format_table_view(urlsplit(source).path, entity_type) if source and entity_type else {}


def info(session: Session, url: str) -> Flow[tuple[TableInfo, TableType]]:
    request = _request("HEAD", with_query(url, since_id="-1", timeout="0"))
    try:
        reply = yield from _headers(session, request)
    except StreamNotFoundError as error:
        error.detail = error.detail or "there is no such table"  # a response to HEAD has no body with the detail
        raise
    table = parse_answer_type(reply.headers.get("content-type"))
    table_info = TableInfo(
        name=name_of(session, url),
        schema=table.schema,
        version=table.version,
        first_seqno=parse_first_seqno(reply.headers),
        last_seqno=parse_last_seqno(reply.headers),
        gapless=parse_gapless(reply.headers),
        mirror=parse_mirror(reply.headers),
        closed=headers.parse_closed(reply.headers),
        ttl_seconds=integer(reply, headers.TTL),
        expires_at=reply.headers.get(headers.EXPIRES_AT),
        retention=retention_of(request, reply),
    )
    return table_info, table


def _headers(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """The headers of a table. STP only defines GET: a server that does not know HEAD is asked with GET."""
    try:
        return (yield from flows.current(session, request))
    except HeadwaterError as error:
        if error.status not in _NO_HEAD:
            raise
    reply: HttpReply = yield from opened(session, msgspec.structs.replace(request, method="GET"), 200)
    yield CloseReply()
    return reply


def append(
    session: Session,
    url: str,
    table: TableType,
    changes: Iterable[Change],
    *,
    producer: ProducerTuple | None = None,
    close: bool = False,
    if_tail: int | None = None,
) -> Flow[AppendedRows]:
    """Append changes in one request. Without a producer it is not retried if it may have been stored."""
    triples = [_as_tuple(change) for change in changes]
    if not triples and not close:
        raise ValueError("nothing to append")
    body = format_changes(triples, table.escape) if triples else b""
    return (yield from append_body(session, url, table, body, producer, close=close, if_tail=if_tail))


def append_all(
    session: Session,
    url: str,
    table: TableType,
    changes: Iterable[Change],
    *,
    batch_bytes: int,
    producer_id: str | None,
    epoch: int,
) -> Flow[AppendedRows]:
    """Append any number of changes in as many requests as needed. Each is numbered, so that it is stored once."""
    producer_id = producer_id or uuid.uuid4().hex
    done: AppendedRows | None = None
    for seq, batch in enumerate(_batches(changes, batch_bytes)):
        body = format_changes(batch, table.escape)
        done = yield from append_body(session, url, table, body, ProducerTuple(producer_id, epoch, seq))
    if done is not None:
        return done
    table_info, _ = yield from info(session, url)
    return AppendedRows(table_info.last_seqno or 0)


def append_body(
    session: Session,
    url: str,
    table: TableType,
    body: bytes,
    producer: ProducerTuple | None,
    *,
    close: bool = False,
    if_tail: int | None = None,
) -> Flow[AppendedRows]:
    table_type = format_table_type(table)
    return (yield from _append_as(session, url, table_type, body, producer, close=close, if_tail=if_tail))


def compose(
    session: Session,
    url: str,
    composition: bytes,
    producer: ProducerTuple | None,
    *,
    close: bool = False,
    if_tail: int | None = None,
) -> Flow[AppendedRows]:
    """Append the changes in ranges of streams."""
    return (yield from _append_as(session, url, COMPOSE_TYPE, composition, producer, close=close, if_tail=if_tail))


def _append_as(
    session: Session,
    url: str,
    content_type: str,
    body: bytes,
    producer: ProducerTuple | None,
    *,
    close: bool,
    if_tail: int | None,
) -> Flow[AppendedRows]:
    plain = flows.append_request(url, content_type, body, producer=producer, close=close, if_tail=if_tail)
    request = _request("POST", url, plain.headers, body)
    reply = yield from exchange(session, request, repeatable=producer is not None or not body)
    return _appended(request, reply, producer)


def append_rows(
    session: Session,
    url: str,
    table: TableType,
    rows: Iterable[Row],
    *,
    after: int,
    close: bool = False,
    attempts_max: int | None = None,
) -> Flow[AppendedRows]:
    """Append rows to a mirror in one request. It can be retried: the server skips rows that it has."""
    body = b"".join([format_row(escaped(row, table.escape)) for row in rows])
    if not body and not close:
        raise ValueError("nothing to append")
    request_headers = {"content-type": format_table_type(table), AFTER_SEQNO: str(after)}
    if close:
        request_headers[headers.CLOSED] = "true"
    request = _request("POST", url, request_headers, body)
    reply = yield from exchange(session, request, attempts_max=attempts_max)
    return _appended(request, reply, None)


def _appended(request: HttpRequest, reply: HttpReply, producer: ProducerTuple | None) -> AppendedRows:
    required(request, reply, LAST_SEQNO)
    duplicate = producer is not None and reply.status == 204 and bool(request.body)
    return AppendedRows(parse_last_seqno(reply.headers) or 0, duplicate)


def _as_tuple(change: Change) -> tuple[Action, str, str]:
    if isinstance(change, Put):
        triple: tuple[Action, str, str] = ADD, change.key, change.record
    elif isinstance(change, Remove):
        triple = DELETE, change.key, change.record
    elif isinstance(change, tuple) and len(change) == 3:
        triple = change
    else:
        raise TypeError(f"a change is Put, Remove or a tuple of action, key and record, got {change!r:.80}")
    if not (isinstance(triple[1], str) and isinstance(triple[2], str)):
        raise TypeError(f"the key and the record of a change are texts (json.dumps makes one), got {change!r:.80}")
    return triple


def _batches(changes: Iterable[Change], batch_bytes: int) -> Iterator[list[tuple[Action, str, str]]]:
    """Split changes into groups of about this many characters, each with at least one change and within the limit."""
    batch: list[tuple[Action, str, str]] = []
    size = 0
    for change in map(_as_tuple, changes):
        batch.append(change)
        size += len(change[1]) + len(change[2]) + limits.CHANGE_OVERHEAD_BYTES
        if size >= batch_bytes or len(batch) == limits.CHANGES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def delete(session: Session, url: str, *, if_tail: int | None = None) -> Flow[None]:
    return flows.delete(session, url, if_tail=if_tail, guarded=True)


def trim(session: Session, url: str, before: int | str | datetime) -> Flow[int]:
    """Trim a table, and return its first SeqNo."""
    text = str(before) if isinstance(before, int) else flows.instant(before, "before")
    request = _request("POST", with_query(f"{url}/{TRIM}", before=text))
    reply = yield from known(session, request)
    required(request, reply, FIRST_SEQNO)
    return parse_first_seqno(reply.headers) or 1


def compact(session: Session, url: str) -> Flow[CompactionReport]:
    return (yield from retaining.compact(session, f"{url}/{COMPACT}", guarded=True))


def table_page(session: Session, prefix: str, after: str | None, limit: int) -> Flow[TablePage]:
    url = with_query(f"{session.table_root}{RESERVED}/tables", prefix=prefix or None, after=after, limit=str(limit))
    reply = yield from exchange(session, _request("GET", url))
    try:
        return msgspec.json.decode(reply.body, type=TablePage)
    except UNREADABLE as error:
        raise ProtocolError(f"this server has no list of tables: {reason_of(error)}") from None


def name_of(session: Session, url: str) -> str:
    """A table's name if it is on the client's server, otherwise its SURL."""
    if not url.startswith(session.table_root):
        return url
    return unquote(urlsplit(url).path[len(urlsplit(session.table_root).path) :])
