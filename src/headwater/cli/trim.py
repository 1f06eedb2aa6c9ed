"""`headwater trim`: remove the beginning of a stream."""

from __future__ import annotations

import typer

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.output import print_json, say
from headwater.cli.retaining import parse_before
from headwater.errors import InvalidOffsetError
from headwater.protocol.streams.offsets import parse_offset


def command(
    server: Server,
    path: Path,
    before: str = typer.Option(
        help="Remove what comes before: an offset, now (everything), 30s, 15m, 1h or 2d ago, or 2030-01-01T00:00:00Z."
    ),
    as_json: AsJson = False,
) -> None:
    """Remove what comes before an offset or a time, permanently. Forks keep the data that they inherited."""
    place = parse_before(before, is_offset, "an offset of the stream")
    with connected(server, path) as client:
        stream = client.stream(path)
        first_offset = stream.trim(place)
    if as_json:
        print_json({"url": stream.url, "first_offset": first_offset})
    else:
        say(f"trimmed {stream.url}, which begins at {first_offset}")


def is_offset(text: str) -> bool:
    try:
        parse_offset(text)
    except InvalidOffsetError:
        return False
    return True
