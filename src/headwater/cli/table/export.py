"""`headwater table export`: write the live rows of a table as CSV or TSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from headwater.cli.connecting import Name, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import write
from headwater.cli.table.importing import check_delimiter
from headwater.log.json_framing import UNREADABLE

RECORD = "record"  # the column of records that are not JSON objects

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def command(
    server: Server,
    name: Name,
    key: str = typer.Option("key", "--key", "-k", help="The name of the column with the keys."),
    delimiter: str = typer.Option(",", help="The character between two fields; \\t is a tab."),
) -> None:
    """Print the live rows of a table as CSV, with a line of column names.

    The columns are the key and the names in the records, which are JSON objects. Texts are written as they are, other
    values as JSON; a name that a record does not have is an empty field. If no record is a JSON object, there is one
    column with the whole record. The result can be imported with headwater table import.
    """
    try:
        separator = check_delimiter(delimiter)
    except ValueError as error:
        fail(str(error), "Give one character, such as --delimiter ';'.", code=WRONG_CALL)
    with connected(server, name) as client:
        rows = client.table(name).active()
    try:
        text = format_separated({row.key: row.record for row in rows.values()}, key, separator)
    except ValueError as error:
        fail(f"{name}: {error}", "Print the rows as they are with: headwater table read NAME --active")
    write(text.encode())


def format_separated(records: Mapping[str, str], key_column: str, delimiter: str) -> str:
    """A line of column names, and a line for each key. ValueError if the records do not fit into columns."""
    objects = {key: _object(record) for key, record in records.items()}
    other = next((key for key, fields in objects.items() if fields is None), None)
    if other is not None and any(fields is not None for fields in objects.values()):
        raise ValueError(f"some records are JSON objects, and that of {other[:80]!r} is not")
    rows = {key: {RECORD: records[key]} if fields is None else fields for key, fields in objects.items()}
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    if key_column in columns:
        raise ValueError(f"the records have a column {key_column!r} as well; name another one for the keys with --key")
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow([key_column, *columns])
    writer.writerows([key, *(row.get(name, "") for name in columns)] for key, row in rows.items())
    return text.getvalue()


def _object(record: str) -> dict[str, str] | None:
    """The fields of a JSON object as text; None if the record is something else."""
    try:
        return {name: _text(value) for name, value in _decoder.decode(record).items()}
    except UNREADABLE:
        return None


def _text(value: msgspec.Raw) -> str:
    """A text without its quotes, anything else as it is written."""
    decoded: Any = msgspec.json.decode(value) if bytes(value).startswith(b'"') else None
    return decoded if isinstance(decoded, str) else bytes(value).decode()
