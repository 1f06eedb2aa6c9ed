"""`headwater table import`: make a table equal to a file, by appending only the differences."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import print_json, say, write
from headwater.cli.table.importing import (
    EXTENSIONS,
    SPREADSHEETS,
    Difference,
    Format,
    check_delimiter,
    difference,
    read_rows,
)
from headwater.protocol.tables.changes import format_changes
from headwater.protocol.tables.escaping import Escape


def command(
    server: Server,
    name: Name,
    file: Annotated[str, typer.Argument(help="A CSV, TSV or JSON Lines file, - for standard input.")],
    key: str = typer.Option(..., "--key", "-k", help="The column with the keys."),
    form: Format | None = typer.Option(None, "--format", help="The format, if the file's extension does not say."),
    delimiter: str | None = typer.Option(
        None,
        help="The character between two fields of CSV; \\t is a tab. If absent, comma, semicolon, tab and | are tried.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print the changes in the format of append, and send nothing."
    ),
    allow_empty: bool = typer.Option(
        False, "--allow-empty", help="Accept a file without rows, which deletes every key."
    ),
    as_json: AsJson = False,
) -> None:
    """Make a table equal to a file: append new and changed rows, and delete the keys that the file does not have.

    CSV and TSV start with a line of column names, and their fields are text. JSON Lines have one object per line. The
    record of a row is the compact JSON object of all columns except the key, in the order of the file. The whole file
    is read and checked before anything is sent. If the command is interrupted, run it again: it appends the rest.
    """
    if Path(file).suffix.lower() in SPREADSHEETS:
        fail(f"{file} is a spreadsheet", "Save it as CSV in UTF-8, and import that file.", code=WRONG_CALL)
    chosen = form or EXTENSIONS.get(Path(file).suffix.lower())
    if chosen is None:
        fail(f"the extension of {file} names no format", "Add --format csv, tsv or jsonl.", code=WRONG_CALL)
    with connected(server, name) as client:
        table = client.table(name)
        table.info()
        escaping = table.table_type.escape if table.table_type is not None else Escape.NONE
        wanted = _read(file, chosen, key, escaping, delimiter)
        delta = difference(wanted, table.active())
        if not wanted and delta.deleted and not allow_empty:
            what = f"{file} has no rows, which would delete every key ({delta.deleted:,})"
            fail(what, "To do that, add --allow-empty.")
        if delta.changes and not dry_run:
            table.append_all(delta.changes)
    if dry_run and not as_json:
        write(format_changes(delta.changes, escaping) if delta.changes else b"")
    _report(delta, dry_run=dry_run, as_json=as_json)


def _read(file: str, form: Format, key: str, escaping: Escape, delimiter: str | None) -> dict[str, str]:
    with _opened(file) as lines:
        try:
            separator = None if delimiter is None else check_delimiter(delimiter)
            return read_rows(lines, form, key, escaping, separator)
        except UnicodeDecodeError as error:
            what = f"{file}: not UTF-8: {error.reason} at byte {error.start}"
            fail(what, "Convert it to UTF-8. Nothing was changed.", code=WRONG_CALL)
        except ValueError as error:
            fail(f"{file}, {error}", "Nothing was changed.", code=WRONG_CALL)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    """Decode UTF-8, with or without the byte order mark that spreadsheets write."""
    if file == "-":
        yield io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig", newline="")
        return
    with open(file, encoding="utf-8-sig", newline="") as lines:
        yield lines


def _report(delta: Difference, *, dry_run: bool, as_json: bool) -> None:
    counts = {
        "added": delta.added,
        "changed": delta.changed,
        "deleted": delta.deleted,
        "unchanged": delta.unchanged,
    }
    if as_json:
        print_json({**counts, "dry_run": dry_run})
        return
    counted = ", ".join(f"{number:,} {what}" for what, number in counts.items())
    say(f"{counted}; nothing was sent" if dry_run else counted, err=dry_run)
