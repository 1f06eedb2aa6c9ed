"""`headwater subscription list`: the subscriptions of a server."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headwater.cli.connecting import AsJson, Server, complete_subscription, connected
from headwater.cli.output import print_json, print_table

COLUMNS = ["id", "type", "pattern", "pending", "lag_bytes", "holder", "status", "failures", "last_failure"]


def command(
    server: Server,
    prefix: Annotated[
        str, typer.Argument(help="Only ids with this prefix.", autocompletion=complete_subscription)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List subscriptions, ordered by id: how many streams have pending events, who holds the lease, and failures.

    With --json, print one object per line.
    """
    with connected(server) as client:
        if as_json:
            for status in client.subscriptions(prefix):
                print_json(status)
            return
        rows = [msgspec.structs.asdict(status) for status in client.subscriptions(prefix)]
    for row in rows:
        row |= {"pending": row["pending_count"], "failures": row["failures"] or None}
    folding = ["id", "pattern", "holder", "last_failure"]
    print_table(rows, COLUMNS, folding=folding, right=["pending", "lag_bytes", "failures"])
