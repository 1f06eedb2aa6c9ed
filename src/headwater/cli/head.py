"""`headwater head`: show the metadata of a stream."""

from __future__ import annotations

import msgspec

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, print_table


def command(server: Server, path: Path, as_json: AsJson = False) -> None:
    """Show a stream's content type, its tail, whether it is closed, and when it expires."""
    with connected(server, path) as client:
        info = msgspec.structs.asdict(client.stream(path).head())
    del info["created_at"], info["bytes"]  # only in the list of streams
    if as_json:
        print_json(info)
    else:
        rows = [{"name": name, "value": value} for name, value in info.items()]
        print_table(rows, ["name", "value"], folding=["value"])
