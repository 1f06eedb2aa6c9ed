"""`headwater close`: close a stream."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Path, Token, Url, connected
from headwater.cli.output import print_json


def command(path: Path, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Close a stream: readers come to an end, appends are refused. Closing it again changes nothing."""
    with connected(url, token) as client:
        stream = client.stream(path)
        offset = stream.close().offset
    if as_json:
        print_json({"url": stream.url, "offset": offset, "closed": True})
    else:
        typer.echo(f"closed {stream.url} at {offset}")
