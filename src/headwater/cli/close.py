"""`headwater close`: close a stream."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, say


def command(server: Server, path: Path, as_json: AsJson = False) -> None:
    """Close a stream: readers reach an end, and appends are refused. Closing it again has no effect."""
    with connected(server, path) as client:
        stream = client.stream(path)
        offset = stream.close().offset
    if as_json:
        print_json({"url": stream.url, "offset": offset, "closed": True})
    else:
        say(f"closed {stream.url} at {offset}")
