"""Servers of tables for the tests of clients: a small honest one, and one that answers byte for byte as it is told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from headwater.errors import HeadwaterError
from headwater.protocol.tables.changes import parse_changes
from headwater.protocol.tables.content_type import format_table_type, parse_table_type
from headwater.protocol.tables.escaping import Escape, escape
from headwater.protocol.tables.rows import Row, format_row, format_rows, parse_row

ROOT = "/v1/table/"
NOW = "2026-01-08T00:00:00.000Z"
CONTENT_TYPE = "text/sequence; charset=utf-8; schema=text; version=1"


@dataclass
class StoredTable:
    content_type: str
    rows: list[bytes] = field(default_factory=list)
    producers: dict[tuple[str, str], int] = field(default_factory=dict)
    closed: bool = False


class TableServer(ThreadingHTTPServer):
    """Tables in memory, by the HTTP contract of Headwater. `lose` answers so many appends with a lost connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tables)
        self.tables: dict[str, StoredTable] = {}
        self.changed = threading.Condition()
        self.requests: list[str] = []
        self.headers_seen: list[dict[str, str]] = []
        self.lose = 0
        self.idle_s = 0.2
        self.stopping = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, *changes: str) -> None:
        """Append changes, given as `+ key record`."""
        with self.changed:
            table = self.tables.setdefault(name, StoredTable(CONTENT_TYPE))
            lines = ["\t".join([*change.split(" ", 2), ""][:3]).encode() for change in changes]
            table.rows += format_rows(lines, len(table.rows) + 1, NOW).splitlines(keepends=True)
            self.changed.notify_all()


class _Tables(BaseHTTPRequestHandler):
    server: TableServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _table(self) -> StoredTable | None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
        table = self.server.tables.get(self._name())
        if table is None and self.command != "PUT":
            self._answer(404)
        return table

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix(ROOT))

    def _headers(self, table: StoredTable) -> dict[str, str]:
        shown = {"Content-Type": table.content_type, "STP-Last-SeqNo": str(len(table.rows)), "STP-Gapless": "true"}
        return shown | ({"Stream-Closed": "true"} if table.closed else {})

    def do_PUT(self) -> None:
        table = self._table()
        content_type = format_table_type(parse_table_type(self.headers["Content-Type"]))
        if table is None:
            self.server.tables[self._name()] = StoredTable(content_type)
        self._answer(201 if table is None else 200 if table.content_type == content_type else 409)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        table = self._table()
        if table is None:
            return
        try:
            lines = parse_changes(body, 1_000_000, parse_table_type(table.content_type).escape).lines if body else []
        except HeadwaterError as error:
            self._answer(400, body=str(error).encode())
            return
        producer = (self.headers.get("Producer-Id", ""), self.headers.get("Producer-Epoch", ""))
        seq = int(self.headers.get("Producer-Seq", -1))
        duplicate = seq >= 0 and table.producers.get(producer, -1) >= seq
        with self.server.changed:
            if not duplicate:
                table.rows += format_rows(lines, len(table.rows) + 1, NOW).splitlines(keepends=True) if lines else []
                table.producers[producer] = seq
            table.closed = table.closed or self.headers.get("Stream-Closed") == "true"
            self.server.changed.notify_all()
        if self.server.lose:
            self.server.lose -= 1
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._answer(204 if duplicate or seq < 0 else 200, self._headers(table))

    def do_HEAD(self) -> None:
        if (table := self._table()) is not None:
            self._answer(200, self._headers(table))

    def do_DELETE(self) -> None:
        if self._table() is not None:
            del self.server.tables[self._name()]
            self._answer(204)

    def do_GET(self) -> None:
        if self._name() == "__stp/tables":
            self._list()
        elif (table := self._table()) is not None:
            self._read(table)

    def _list(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        names = [name for name in sorted(self.server.tables) if name.startswith(query.get("prefix", ""))]
        names = [name for name in names if name > query.get("after", "")]
        shown = names[: int(query["limit"])]
        page = []
        for name in shown:
            table = self.server.tables[name]
            kind = parse_table_type(table.content_type)
            page.append(
                {"name": name, "schema": kind.schema, "version": kind.version, "last_seqno": len(table.rows)}
                | {"closed": table.closed, "created_at": NOW, "expires_at": None}
            )
        body = {"tables": page, "next_after": shown[-1] if len(names) > len(shown) else None}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _read(self, table: StoredTable) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        since_id, begin = int(query.get("since_id", "0")), len(table.rows)
        position = max(0, begin + since_id) if since_id < 0 else since_id
        key = query.get("key")
        if key is not None and parse_table_type(table.content_type).escape is Escape.BACKSLASH:
            key = escape(key)
        rows = table.rows[position:] if "view" not in query else _active(table.rows, key, since_id)
        headers = self._headers(table)
        if "view" in query:
            del headers["STP-Gapless"]
        if query.get("timeout") == "0" or "view" in query or table.closed:
            self._answer(200, headers, b"".join(rows))
            return
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._hold(table, position)

    def _hold(self, table: StoredTable, position: int) -> None:
        deadline = time.monotonic() + self.server.idle_s
        while not self.server.stopping:
            with self.server.changed:
                rows = b"".join(table.rows[position:])
                if not rows and not self.server.changed.wait(max(0.0, deadline - time.monotonic())):
                    break
            if rows:
                position = len(table.rows)
                deadline = time.monotonic() + self.server.idle_s
                self.wfile.write(b"%x\r\n%s\r\n" % (len(rows), rows))
                self.wfile.flush()
            elif time.monotonic() >= deadline:
                break
        self.wfile.write(b"0\r\n\r\n")


def _active(rows: list[bytes], key: str | None, since_id: int) -> list[bytes]:
    live: dict[str, Row] = {}
    for line in rows:
        row = parse_row(line[:-1].decode())
        live.pop(row.key, None)
        if row.action == "+":
            live[row.key] = row
    return [format_row(row) for row in live.values() if row.seqno > since_id and key in (None, row.key)]


@contextlib.contextmanager
def table_server() -> Iterator[TableServer]:
    with TableServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stopping = True
            server.shutdown()
            thread.join()


# A hostile server: a script says what each request gets, byte for byte.

Script = Callable[[int, str], Iterator[bytes]]


class _Scripted(ThreadingHTTPServer):
    daemon_threads = True
    script: Script
    seen: list[str]
    sent_bytes: list[int]


class _Raw(BaseHTTPRequestHandler):
    server: _Scripted

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        number = len(self.server.seen)
        self.server.seen.append(self.path)
        self.server.sent_bytes.append(0)
        with contextlib.suppress(OSError):
            for piece in self.server.script(number, self.path):
                self.wfile.write(piece)
                self.server.sent_bytes[number] += len(piece)
        self.close_connection = True


@dataclass
class Hostile:
    url: str
    seen: list[str]
    sent_bytes: list[int]  # of each answer


@contextlib.contextmanager
def hostile_server(script: Script) -> Iterator[Hostile]:
    with _Scripted(("127.0.0.1", 0), _Raw) as server:
        server.script, server.seen, server.sent_bytes = script, [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield Hostile(f"http://127.0.0.1:{server.server_address[1]}", server.seen, server.sent_bytes)
        finally:
            server.shutdown()
            thread.join()


def head(status: str = "200 OK", content_type: str = CONTENT_TYPE, **headers: str) -> bytes:
    lines = [f"HTTP/1.0 {status}", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def lines(*seqnos: int, record: str = "r") -> bytes:
    return b"".join(format_row(Row(seqno, NOW, "+", f"k{seqno}", record)) for seqno in seqnos)
