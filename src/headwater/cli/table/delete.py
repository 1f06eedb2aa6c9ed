"""`headwater table delete`: delete a table."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Token, Url, connected
from headwater.cli.output import print_json
from headwater.cli.table.names import Name


def command(name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Delete a table and its rows."""
    with connected(url, token) as client:
        table = client.table(name)
        table.delete()
    if as_json:
        print_json({"url": table.url, "deleted": True})
    else:
        typer.echo(f"deleted {table.url}")
