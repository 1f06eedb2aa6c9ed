"""Read the active view of a table: the rows of live keys, or the row of one of them. It is answered at once."""

from __future__ import annotations

from headwater import limits as bounds
from headwater.engine.messages import FindRow, StreamInfo
from headwater.limits import BODY_PIECE_BYTES
from headwater.protocol.streams.etags import encoded, matched
from headwater.protocol.tables.accept import check_accept
from headwater.protocol.tables.escaping import Escape, escape
from headwater.protocol.tables.headers import GAPLESS
from headwater.protocol.tables.queries import TableQuery
from headwater.server import compression
from headwater.server.compression import Encoder
from headwater.server.http import Frame, Headers, Request, Response, Sink
from headwater.server.service import Service
from headwater.server.streams.replies import SANDBOX
from headwater.server.tables.replies import described, last_seqno, table_type
from headwater.server.turns import Turns

_VARY = ("vary", "accept-encoding")
_NO_CACHE = ("cache-control", "no-cache")


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
    service: Service, request: Request, table: StreamInfo, seqno: int, rows: list[bytes], what: str
) -> Response:
    """The rows of a view are those up to one SeqNo, which the answer names: a follower goes on after it."""
    first = rows[0][: rows[0].index(b"\t")].decode() if rows else ""
    tag = f'"{table.id}:{what}:{first}:{len(rows)}:{seqno if what == "active" else ""}"'
    gapless = [header for header in described(table) if header[0] == GAPLESS]
    found: Headers = (last_seqno(seqno), *gapless, _NO_CACHE, _VARY, SANDBOX)
    if_none_match = request.headers.get("if-none-match")
    known = None if if_none_match is None else matched(if_none_match, tag)
    if known is not None:
        return Response(304, (*found, ("etag", known)))
    found += (("content-type", table.content_type),)
    size_bytes = sum(map(len, rows))
    encoding = None
    if size_bytes >= bounds.COMPRESS_BYTES_MIN:
        encoding = compression.choose_encoding(request.headers.get("accept-encoding", "identity"))
    if encoding is None:
        found += (("etag", tag),)
        if size_bytes <= BODY_PIECE_BYTES:
            return Response(200, found, (b"".join(rows),) if rows else ())
        return Response(200, found, feed=RowListFeed(service.turns, rows))
    found += (("etag", encoded(tag, encoding)), ("content-encoding", encoding))
    if size_bytes <= service.limits.compress_inline_bytes:
        return Response(200, found, (compression.encode((b"".join(rows),), encoding),))
    return Response(200, found, feed=RowListFeed(service.turns, rows, compression.encoder(encoding)))


class RowListFeed:
    """Rows in memory as a response that stays open, written as the client takes them."""

    def __init__(self, turns: Turns, rows: list[bytes], encoder: Encoder | None = None) -> None:
        self._turns = turns
        self._rows = rows
        self._encoder = encoder
        self._next = 0
        self._sink: Sink | None = None
        self._waiting = False  # for its turn

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        self.drained()

    def drained(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._turns.ask(self._write_on)

    def tick(self, now_s: float) -> None:
        """It needs no sign of life."""

    def finish(self) -> None:
        """It has one end. A client that reads gets all of it."""

    def cancel(self) -> None:
        self._sink = None
        self._rows = []

    def _write_on(self) -> None:
        self._waiting = False
        sink = self._sink
        if sink is None or sink.blocked:
            return
        piece = self._piece()
        if not piece:
            self._end(sink)
            return
        if self._encoder is not None:
            piece = self._encoder.encode(piece)
        if piece:
            sink.write(Frame(piece))
        self.drained()

    def _piece(self) -> bytes:
        first, size_bytes = self._next, 0
        while self._next < len(self._rows) and size_bytes < BODY_PIECE_BYTES:
            size_bytes += len(self._rows[self._next])
            self._next += 1
        return b"".join(self._rows[first : self._next])

    def _end(self, sink: Sink) -> None:
        rest = b"" if self._encoder is None else self._encoder.finish()
        self.cancel()
        if rest:
            sink.write(Frame(rest))
        sink.end()
