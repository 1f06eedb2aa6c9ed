"""`headwater compact`: replace the front of a stream by a snapshot now."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.retaining import show_compaction


def command(server: Server, path: Path, as_json: AsJson = False) -> None:
    """Replace a stream of state events up to its tail by a snapshot of its entities, and wait for that.

    Readers that are there go on, and new ones get the snapshot first. To compact a stream regularly:
    headwater retain PATH --compact
    """
    with connected(server, path) as client:
        stream = client.stream(path)
        report = stream.compact()
    show_compaction(stream.url, report, as_json=as_json)
