"""`headwater head`: show the metadata of a stream."""

from __future__ import annotations

import msgspec

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, print_table
from headwater.cli.retaining import retention_text


def command(server: Server, path: Path, as_json: AsJson = False) -> None:
    """Show a stream's content type, where it begins and ends, whether it is closed, when it expires, what is kept."""
    with connected(server, path) as client:
        info = msgspec.structs.asdict(client.stream(path).head())
    del info["created_at"], info["bytes"]  # only in the list of streams
    if as_json:
        print_json(info)
    else:
        info["retention"] = retention_text(info["retention"]) or "everything"
        rows = [{"name": name, "value": value} for name, value in info.items()]
        print_table(rows, ["name", "value"], folding=["value"])
