"""`headwater fork`: create a stream that shares the data of another one."""

from __future__ import annotations

import typer

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, say
from headwater.cli.retaining import (
    Compact,
    CompactAfter,
    RetainBytes,
    RetainMessages,
    RetainSeconds,
    RetentionOptions,
    created_retention,
)


def command(
    server: Server,
    source: Path,
    target: str = typer.Argument(help="The path of the new stream."),
    offset: str | None = typer.Option(
        None, "--offset", "-o", help="Offset up to which it shares the source. Default: the tail."
    ),
    sub_offset: int = typer.Option(0, min=0, help="Messages (bytes) to share after that offset."),
    ttl: int | None = typer.Option(None, min=0, help="Seconds to live, renewed by every read and write."),
    expires_at: str | None = typer.Option(None, help="When it expires, as 2030-01-01T00:00:00Z."),
    retain_seconds: RetainSeconds = None,
    retain_bytes: RetainBytes = None,
    retain_messages: RetainMessages = None,
    compact: Compact = False,
    compact_after: CompactAfter = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream that starts with the messages of another one, without copying them.

    It does not inherit what is kept of the other one.
    """
    options = RetentionOptions(retain_seconds, retain_bytes, retain_messages, compact or None, compact_after)
    retention = created_retention(options)
    with connected(server, source) as client:
        stream = client.stream(source)
        forked = stream.fork(
            target, offset=offset, sub_offset=sub_offset, ttl_s=ttl, expires_at=expires_at, retention=retention
        )
    if as_json:
        print_json({"url": forked.url, "forked_from": stream.url})
    else:
        say(f"forked {stream.url} to {forked.url}")
