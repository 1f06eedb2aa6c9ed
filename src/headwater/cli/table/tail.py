"""`headwater table tail`: follow a table as it grows."""

from __future__ import annotations

import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.printing import print_rows
from headwater.cli.restarting import Restart, on_gone_of


def command(
    server: Server,
    name: Name,
    since_id: int | None = typer.Option(
        None,
        help="Start after this SeqNo. If negative: start with that many of the last rows. Default: now.",
        show_default=False,
    ),
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Print new rows as they are appended, until the table is closed or Ctrl-C.

    Lost connections are retried.
    """
    with connected(server, name) as client:
        table = client.table(name)
        begin = table.info().last_seqno or 0 if since_id is None else since_id
        reader = table.follow(since_id=begin, on_gone=on_gone_of(restart))
        for rows in reader.batches():
            print_rows(rows, reader.table_type, as_json=as_json)
