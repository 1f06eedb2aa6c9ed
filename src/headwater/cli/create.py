"""`headwater create`: create a stream."""

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
from headwater.protocol.state.as_events import RecordFormat


def command(
    server: Server,
    path: Path,
    content_type: str = typer.Option(
        "application/json", "--content-type", "-t", help="The content type of the stream."
    ),
    ttl: int | None = typer.Option(None, min=0, help="Seconds to live, renewed by every read and write."),
    expires_at: str | None = typer.Option(None, help="When it expires, as 2030-01-01T00:00:00Z."),
    closed: bool = typer.Option(False, "--closed", help="Create it closed."),
    view_of: str | None = typer.Option(None, metavar="TABLE", help="Make it a view of a table: its rows as events."),
    entity_type: str | None = typer.Option(None, "--type", help="Of a view: the entity type of its events."),
    record: RecordFormat = typer.Option(RecordFormat.JSON, help="Of a view: the format of the table's records."),
    retain_seconds: RetainSeconds = None,
    retain_bytes: RetainBytes = None,
    retain_messages: RetainMessages = None,
    compact: Compact = False,
    compact_after: CompactAfter = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream. If it exists with the same configuration, nothing changes."""
    check_view(view_of, entity_type)
    options = RetentionOptions(retain_seconds, retain_bytes, retain_messages, compact or None, compact_after)
    retention = created_retention(options)
    with connected(server, path) as client:
        stream = client.stream(path)
        made = stream.create(
            content_type=content_type,
            ttl_s=ttl,
            expires_at=expires_at,
            closed=closed,
            view_of=None if view_of is None else client.table(view_of).url,
            entity_type=entity_type,
            record=record,
            retention=retention,
        )
    if as_json:
        print_json({"url": stream.url, "created": made})
    else:
        say(f"{'created' if made else 'exists'} {stream.url}")


def check_view(view_of: str | None, entity_type: str | None) -> None:
    """Check the options of a view, which a stream or a table can be."""
    if (view_of is None) != (entity_type is None):
        raise typer.BadParameter("a view needs both --view-of and --type")
