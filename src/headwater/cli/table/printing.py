"""Rows on standard output, to the byte as a server sends them, or as lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape, escape
from headwater.protocol.tables.rows import Row, format_row


def print_rows(rows: Iterable[Row], table_type: TableType | None, *, as_json: bool) -> None:
    out = sys.stdout.buffer
    if as_json:
        out.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    elif table_type is not None and table_type.escape is Escape.BACKSLASH:
        out.write(b"".join(format_row(_escaped(row)) for row in rows))
    else:
        out.write(b"".join(map(format_row, rows)))
    out.flush()


def _escaped(row: Row) -> Row:
    return msgspec.structs.replace(row, key=escape(row.key), record=escape(row.record))
