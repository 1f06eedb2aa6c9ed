"""`headwater table compact`: remove the rows that later ones have replaced."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.retaining import show_compaction


def command(server: Server, name: Name, as_json: AsJson = False) -> None:
    """Remove the rows of a table that later ones have replaced, and old deletions, and wait for that.

    The other rows keep their SeqNos. To compact a table regularly: headwater table retain NAME --compact
    """
    with connected(server, name) as client:
        table = client.table(name)
        report = table.compact()
    show_compaction(table.url, report, as_json=as_json)
