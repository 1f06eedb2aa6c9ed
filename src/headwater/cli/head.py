"""`headwater head`: what a server says of a stream."""

from __future__ import annotations

import msgspec

from headwater.cli.connecting import DEFAULT_URL, AsJson, Path, Token, Url, connected
from headwater.cli.output import print_json, print_table


def command(path: Path, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Show a stream's content type, where it ends, whether it is closed and when it expires."""
    with connected(url, token) as client:
        info = msgspec.structs.asdict(client.stream(path).head())
    del info["created_at"]  # known to the list only
    if as_json:
        print_json(info)
    else:
        print_table([{"name": name, "value": value} for name, value in info.items()], ["name", "value"])
