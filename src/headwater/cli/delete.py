"""`headwater delete`: delete a stream."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, say


def command(server: Server, path: Path, as_json: AsJson = False) -> None:
    """Delete a stream and its data permanently. Forks keep the data that they inherited."""
    with connected(server, path) as client:
        stream = client.stream(path)
        stream.delete()
    if as_json:
        print_json({"url": stream.url, "deleted": True})
    else:
        say(f"deleted {stream.url}")
