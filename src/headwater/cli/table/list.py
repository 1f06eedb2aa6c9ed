"""`headwater table list`: the tables of a server."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headwater.cli.connecting import AsJson, Server, complete_name, connected
from headwater.cli.output import print_json, print_list
from headwater.cli.retaining import retention_text

COLUMNS = [
    "name",
    "first_seqno",
    "last_seqno",
    "bytes",
    "schema",
    "version",
    "closed",
    "created_at",
    "expires_at",
    "retention",
]


def command(
    server: Server,
    prefix: Annotated[str, typer.Argument(help="Only names with this prefix.", autocompletion=complete_name)] = "",
    as_json: AsJson = False,
) -> None:
    """List tables, ordered by name. With --json, print one object per line."""
    with connected(server) as client:
        tables = [
            {name: value for name, value in msgspec.structs.asdict(info).items() if name in COLUMNS}
            for info in client.tables(prefix)
        ]
    if as_json:
        for info in tables:
            print_json(info)
    else:
        print_list([{**info, "retention": retention_text(info["retention"]) or None} for info in tables], COLUMNS)
