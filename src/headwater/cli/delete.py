"""`headwater delete`: delete a stream."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Path, Token, Url, connected
from headwater.cli.output import print_json


def command(path: Path, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Delete a stream and all that is in it, at once and for good. Its forks keep what they have."""
    with connected(url, token) as client:
        stream = client.stream(path)
        stream.delete()
    if as_json:
        print_json({"url": stream.url, "deleted": True})
    else:
        typer.echo(f"deleted {stream.url}")
