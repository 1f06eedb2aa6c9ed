"""`headwater table read`: print a table, a part of it, or its live rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.failing import NOT_FOUND, WRONG_CALL, fail
from headwater.cli.printing import print_rows
from headwater.cli.restarting import Restart, on_gone_of

if TYPE_CHECKING:
    from headwater.client import Table


def command(
    server: Server,
    name: Name,
    since_id: int | None = typer.Option(
        None,
        help="Only rows with a larger SeqNo. If negative: only that many of the last rows. Default: 0.",
        show_default=False,
    ),
    until_id: int | None = typer.Option(None, min=0, help="Only rows up to this SeqNo."),
    active: bool = typer.Option(False, "--active", help="Only the last row of each key that is not deleted."),
    key: str | None = typer.Option(None, help="Only the last row of a key, if it is not deleted."),
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table: SeqNo, timestamp, action, key and record, separated by tabs.

    With --json, each line is a row as a JSON object.
    """
    if (active or key is not None) and (since_id is not None or until_id is not None):
        what = "--active and --key cannot be combined with --since-id and --until-id"
        fail(what, "Leave --since-id and --until-id out.", code=WRONG_CALL)
    with connected(server, name) as client:
        table = client.table(name)
        if key is not None:
            _print_key(table, key, as_json=as_json)
        elif active:
            live = table.active()
            print_rows(live.values(), table.table_type, as_json=as_json)
        else:
            reader = table.rows(since_id=since_id or 0, until_id=until_id, on_gone=on_gone_of(restart))
            for rows in reader.batches():
                print_rows(rows, reader.table_type, as_json=as_json)


def _print_key(table: Table, key: str, *, as_json: bool) -> None:
    row = table.get(key)
    if row is None:
        way_out = "List the keys with: headwater table read NAME --active"
        fail(f"{key!r} is not a key of {table.url}, or it is deleted", way_out, code=NOT_FOUND)
    print_rows([row], table.table_type, as_json=as_json)
