"""Prints rows on standard output, exactly as the server sends them, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headwater.cli.output import write
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import Row, escaped, format_row


def print_rows(rows: Iterable[Row], table_type: TableType | None, *, as_json: bool) -> None:
    if as_json:
        write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    else:
        escaping = Escape.NONE if table_type is None else table_type.escape
        write(b"".join(format_row(escaped(row, escaping)) for row in rows))
