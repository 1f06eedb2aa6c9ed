"""`headwater list`: the streams of a server."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Token, Url, complete_path, connected
from headwater.cli.output import print_json, print_table

COLUMNS = ["path", "content_type", "tail_offset", "closed", "created_at", "expires_at"]


def command(
    prefix: Annotated[str, typer.Argument(help="Only paths that begin so.", autocompletion=complete_path)] = "",
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List streams in path order; with --json one object a line."""
    with connected(url, token) as client:
        streams = client.list(prefix)
        if as_json:
            for info in streams:
                print_json(info)
        else:
            print_table([msgspec.structs.asdict(info) for info in streams], COLUMNS)
