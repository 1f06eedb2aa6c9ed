"""`headwater table create`: make a table."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Token, Url, connected
from headwater.cli.output import print_json
from headwater.cli.table.names import Name
from headwater.protocol.tables.escaping import Escape


def command(
    name: Name,
    schema: str = typer.Option("text", help="What the records are."),
    version: int = typer.Option(1, min=0, help="The version of the schema."),
    escape: bool = typer.Option(False, "--escape", help="Let keys and records hold tabs and line ends, escaped."),
    ttl: int | None = typer.Option(None, min=0, help="Seconds to live, renewed by every read and write."),
    expires_at: str | None = typer.Option(None, help="When it ends, as 2030-01-01T00:00:00Z."),
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a table. One that is there already, made alike, is left as it is."""
    with connected(url, token) as client:
        table = client.table(name)
        made = table.create(
            schema=schema,
            version=version,
            escape=Escape.BACKSLASH if escape else Escape.NONE,
            ttl_s=ttl,
            expires_at=expires_at,
        )
    if as_json:
        print_json({"url": table.url, "created": made})
    else:
        typer.echo(f"{'created' if made else 'exists'} {table.url}")
