"""`headwater table create`: create a table."""

from __future__ import annotations

import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.create import check_view
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
from headwater.protocol.tables.escaping import Escape


def command(
    server: Server,
    name: Name,
    schema: str | None = typer.Option(None, help="The schema of the records. Default: text, or json for a view."),
    version: int = typer.Option(1, min=0, help="The version of the schema."),
    escape: bool = typer.Option(False, "--escape", help="Allow tabs and line ends in keys and records, escaped."),
    ttl: int | None = typer.Option(None, min=0, help="Seconds to live, renewed by every read and write."),
    expires_at: str | None = typer.Option(None, help="When it expires, as 2030-01-01T00:00:00Z."),
    view_of: str | None = typer.Option(None, metavar="STREAM", help="Make it a view of a stream's state events."),
    entity_type: str | None = typer.Option(None, "--type", help="Of a view: the type of its entities."),
    retain_seconds: RetainSeconds = None,
    retain_bytes: RetainBytes = None,
    retain_messages: RetainMessages = None,
    compact: Compact = False,
    compact_after: CompactAfter = None,
    as_json: AsJson = False,
) -> None:
    """Create a table. If it exists with the same configuration, nothing changes."""
    check_view(view_of, entity_type)
    options = RetentionOptions(retain_seconds, retain_bytes, retain_messages, compact or None, compact_after)
    retention = created_retention(options)
    with connected(server, name) as client:
        table = client.table(name)
        made = table.create(
            schema=schema,
            version=version,
            escape=Escape.BACKSLASH if escape else Escape.NONE,
            ttl_s=ttl,
            expires_at=expires_at,
            view_of=None if view_of is None else client.stream(view_of).url,
            entity_type=entity_type,
            retention=retention,
        )
    if as_json:
        print_json({"url": table.url, "created": made})
    else:
        say(f"{'created' if made else 'exists'} {table.url}")
