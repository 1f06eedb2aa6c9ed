"""`headwater create`: make a stream."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Path, Token, Url, connected
from headwater.cli.output import print_json


def command(
    path: Path,
    content_type: str = typer.Option("application/json", "--content-type", "-t", help="What it is made of."),
    ttl: int | None = typer.Option(None, min=0, help="Seconds to live, renewed by every read and write."),
    expires_at: str | None = typer.Option(None, help="When it ends, as 2030-01-01T00:00:00Z."),
    closed: bool = typer.Option(False, "--closed", help="Closed from the start."),
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a stream. One that is there already, made alike, is left as it is."""
    with connected(url, token) as client:
        stream = client.stream(path)
        made = stream.create(content_type=content_type, ttl_s=ttl, expires_at=expires_at, closed=closed)
    if as_json:
        print_json({"url": stream.url, "created": made})
    else:
        typer.echo(f"{'created' if made else 'exists'} {stream.url}")
