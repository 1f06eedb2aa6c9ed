"""`headwater table trim`: remove the first rows of a table."""

from __future__ import annotations

import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.output import print_json, say
from headwater.cli.retaining import parse_before
from headwater.positions import NOW
from headwater.protocol.tables.rows import is_seqno


def command(
    server: Server,
    name: Name,
    before: str = typer.Option(
        help="Remove the rows before: a SeqNo, now (all rows), 30s, 15m, 1h or 2d ago, or 2030-01-01T00:00:00Z."
    ),
    as_json: AsJson = False,
) -> None:
    """Remove the rows before a SeqNo or a time, permanently. Rows that were appended together stay together."""
    place = parse_before(before, lambda text: text == NOW or is_seqno(text), "a SeqNo")
    with connected(server, name) as client:
        table = client.table(name)
        first_seqno = table.trim(place)
    if as_json:
        print_json({"url": table.url, "first_seqno": first_seqno})
    else:
        say(f"trimmed {table.url}, which begins with row {first_seqno}")
