"""Reads of the active view of a table, or of one key. The response is never held open."""

from __future__ import annotations

from headwater import limits as bounds
from headwater.engine.messages import FindRow, VisibleStream
from headwater.limits import BODY_PIECE_BYTES
from headwater.protocol.tables.content_type import check_accept
from headwater.protocol.tables.escaping import Escape, escape
from headwater.protocol.tables.queries import TableQuery
from headwater.server import bodies, compression
from headwater.server.bodies import BodyFeed, gathered
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import NO_CACHE, SANDBOX, choose_coding, not_modified
from headwater.server.tables.replies import VARY, described, table_type


async def read_active(service: Service, request: Request, path: str, query: TableQuery) -> Response:
    table = (await service.engine.find_row(FindRow(path, bounds.SEQNO_MAX))).table
    kind = table_type(table)
    check_accept(request.headers.get("accept"), kind)
    live = await service.active.rows_of(service.engine, service.limits, table)
    if query.key is None:
        return _answer(service, request, table, live.last_seqno, live.after(query.since_id), "active")
    key = escape(query.key) if kind.escape is Escape.BACKSLASH else query.key
    row = live.get(key.encode())
    return _answer(service, request, table, live.last_seqno, [] if row is None else [row], "key")


def _answer(
    service: Service, request: Request, table: VisibleStream, seqno: int, rows: list[bytes], what: str
) -> Response:
    """The response has the SeqNo of the view, so that a follower can continue after it."""
    first = rows[0][: rows[0].index(b"\t")].decode() if rows else ""
    tag = f'"{table.version(table.tail)}:{what}:{first}:{len(rows)}:{seqno if what == "active" else ""}"'
    headers: Headers = (*described(table, seqno), NO_CACHE, VARY, SANDBOX)
    if (known := not_modified(request, headers, tag)) is not None:
        return known
    size_bytes = sum(map(len, rows))
    in_pieces = size_bytes > service.limits.compress_inline_bytes
    coding = choose_coding(service, request, tag, size_bytes, in_pieces=in_pieces)
    headers += (("content-type", table.content_type), *coding.headers)
    if coding.encoder is not None:
        pieces = bodies.encoded(gathered(rows), coding.encoder, service.limits.compress_inline_bytes)
        return Response(200, headers, feed=BodyFeed(service.turns, pieces))
    if coding.encoding is not None:
        return Response(200, headers, (compression.encode((b"".join(rows),), coding.encoding),))
    if size_bytes <= BODY_PIECE_BYTES:
        return Response(200, headers, (b"".join(rows),) if rows else ())
    return Response(200, headers, feed=BodyFeed(service.turns, gathered(rows)))
