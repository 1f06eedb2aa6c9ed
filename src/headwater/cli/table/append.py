"""`headwater table append`: append changes from a file or standard input."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from headwater import limits
from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import meter, print_json, say
from headwater.errors import InvalidChangeError
from headwater.log.producers import ProducerTuple
from headwater.protocol.tables.changes import parse_changes
from headwater.protocol.tables.escaping import Escape


def command(
    server: Server,
    name: Name,
    file: Annotated[str, typer.Argument(help="The file, - for standard input.")] = "-",
    if_tail: Annotated[
        int | None, typer.Option(metavar="SEQNO", help="Append only if that is the last row; 0: if there is none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append changes, each exactly once, even if requests have to be retried.

    A change is a line of action, key and record, separated by tabs. The action is + to add a key or replace its record,
    and - to delete it; a deleted key needs no record. A file of less than 1 MiB with at most 100,000
    changes is appended atomically.
    """
    count, producer_id = 0, uuid.uuid4().hex
    with connected(server, name) as client, _opened(file) as source:
        table = client.table(name)
        last_seqno = table.info().last_seqno or 0
        escaping = table.table_type.escape if table.table_type is not None else Escape.NONE
        total = os.fstat(source.fileno()).st_size if file != "-" else None
        sent = 0
        with meter("appending", total) as update:
            for seq, body in enumerate(_bodies(source)):
                try:
                    changes = len(parse_changes(body, len(body), escaping).lines)
                except InvalidChangeError as error:
                    _, _, what = error.detail.partition(": ")
                    where = "standard input" if file == "-" else file
                    fail(f"{where}, line {count + error.line}: {what}", _appended(count), code=WRONG_CALL)
                producer = ProducerTuple(producer_id, 0, seq)
                last_seqno = table.append_body(body, producer=producer, if_tail=if_tail).last_seqno
                if_tail = None if if_tail is None else if_tail + changes
                count, sent = count + changes, sent + len(body)
                update(sent, None)
    if as_json:
        print_json({"changes": count, "last_seqno": last_seqno})
    else:
        say(f"appended {count:,} {'change' if count == 1 else 'changes'}, now at row {last_seqno}")


def _appended(count: int) -> str:
    return f"The {count:,} changes in batches before it were appended." if count else "Nothing was appended."


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with open(file, "rb") as source:
        yield source


def _bodies(source: BinaryIO) -> Iterator[bytes]:
    """The complete lines that have arrived, up to about the size of one request."""
    read = getattr(source, "read1", source.read)
    held = b""
    while chunk := read(limits.PRODUCER_BATCH_BYTES):
        whole, newline, rest = (held + chunk).rpartition(b"\n")
        held = rest
        if newline:
            yield from _split(whole + newline)
        if len(held) > limits.CHANGE_BYTES_MAX:
            break  # refuse a long line before it fills the memory
    if held:
        yield held


def _split(body: bytes) -> Iterator[bytes]:
    """Split lines into bodies of at most as many lines as a server accepts."""
    if body.count(b"\n") <= limits.CHANGES_MAX:
        yield body
        return
    lines = body.splitlines(keepends=True)
    for first in range(0, len(lines), limits.CHANGES_MAX):
        yield b"".join(lines[first : first + limits.CHANGES_MAX])
