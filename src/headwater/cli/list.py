"""`headwater list`: the streams of a server."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headwater.cli.connecting import AsJson, Server, complete_path, connected
from headwater.cli.output import print_json, print_list

COLUMNS = ["path", "bytes", "content_type", "closed", "created_at", "expires_at"]


def command(
    server: Server,
    prefix: Annotated[str, typer.Argument(help="Only paths with this prefix.", autocompletion=complete_path)] = "",
    as_json: AsJson = False,
) -> None:
    """List streams and their sizes, ordered by path. With --json, print one object per line."""
    with connected(server) as client:
        streams = client.list(prefix)
        if as_json:
            for info in streams:
                print_json(info)
        else:
            print_list([msgspec.structs.asdict(info) for info in streams], COLUMNS)
