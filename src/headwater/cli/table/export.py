"""`headwater table export`: write the live rows of a table as CSV or TSV."""

from __future__ import annotations

import typer

from headwater.cli.connecting import Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import write
from headwater.cli.table.exporting import format_separated
from headwater.cli.table.importing import check_delimiter
from headwater.cli.table.names import Name


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
