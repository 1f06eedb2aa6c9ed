"""`headwater table delete`: delete a table."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.output import print_json, say


def command(server: Server, name: Name, as_json: AsJson = False) -> None:
    """Delete a table and its rows."""
    with connected(server, name) as client:
        table = client.table(name)
        table.delete()
    if as_json:
        print_json({"url": table.url, "deleted": True})
    else:
        say(f"deleted {table.url}")
