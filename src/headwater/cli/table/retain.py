"""`headwater table retain`: what is kept of a table."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.retaining import (
    Bytes,
    CompactAfter,
    CompactOrNot,
    Forever,
    Messages,
    RetentionOptions,
    Seconds,
    retain,
)


def command(
    server: Server,
    name: Name,
    seconds: Seconds = None,
    bytes: Bytes = None,  # noqa: A002
    messages: Messages = None,
    compact: CompactOrNot = None,
    compact_after: CompactAfter = None,
    forever: Forever = False,
    as_json: AsJson = False,
) -> None:
    """Change what is kept of a table. Without options, show it.

    What is no longer to be kept is removed at once. Options that are not given stay as they are.
    """
    options = RetentionOptions(seconds, bytes, messages, compact, compact_after)
    with connected(server, name) as client:
        retain(client.table(name), options, forever=forever, as_json=as_json)
