"""Prints the batches of a stream, or the rows of a table, on standard output, unchanged or as lines of JSON."""

from __future__ import annotations

import base64
import codecs
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.cli.output import print_json, write, write_text
from headwater.log.content import ContentKind
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import Row, escaped, format_row

if TYPE_CHECKING:
    from headwater.client import Batch


@contextlib.contextmanager
def batch_printer(kind: ContentKind, *, as_json: bool) -> Iterator[Callable[[Batch[bytes]], None]]:
    """Prints batches one after the other. On a terminal, a character can start in one and end in the next."""
    if as_json:
        yield lambda batch: print_json(_record(batch, kind))
    elif kind is ContentKind.JSON:
        yield lambda batch: write(b"".join(_line(message) + b"\n" for message in batch.items))
    elif not sys.stdout.isatty():
        yield lambda batch: write(b"".join(batch.items))
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        yield lambda batch: write_text(decoder.decode(b"".join(batch.items)))
        write_text(decoder.decode(b"", final=True))


def _line(message: bytes) -> bytes:
    """A message on one line, without the white space that it was written with."""
    return msgspec.json.format(message, indent=-1) if b"\n" in message else message


def _record(batch: Batch[bytes], kind: ContentKind) -> dict[str, Any]:
    record: dict[str, Any] = {"offset": batch.offset, "up_to_date": batch.up_to_date, "closed": batch.closed}
    if batch.restarted:
        record["restarted"] = True
    if batch.skip:
        record["skip"] = batch.skip
    return record | content_record(batch.items, kind)


def content_record(items: list[bytes], kind: ContentKind) -> dict[str, Any]:
    """The content of a batch as a member of a JSON object: `messages`, `text` or `base64`."""
    if kind is ContentKind.JSON:
        return {"messages": [msgspec.Raw(_line(message)) for message in items]}
    data = b"".join(items)
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def print_rows(rows: Iterable[Row], table_type: TableType | None, *, as_json: bool) -> None:
    if as_json:
        write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    else:
        escaping = Escape.NONE if table_type is None else table_type.escape
        write(b"".join(format_row(escaped(row, escaping)) for row in rows))
