"""`headwater read`: print a stream, or a part of it."""

from __future__ import annotations

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson, Path, Token, Url, connected
from headwater.cli.output import meter
from headwater.cli.printing import print_batch
from headwater.log.content import kind_of


def command(
    path: Path,
    offset: str = typer.Option("-1", "--offset", "-o", help="Where to begin: an offset, -1 or now."),
    skip: int = typer.Option(0, min=0, help="Leave out so many messages (bytes) after that offset."),
    until: str | None = typer.Option(None, help="Where to end: nothing at or past this offset."),
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print what is in a stream: one message a line for a stream of JSON, for any other the bytes as they are.

    With --json each line is a batch with its messages and the offset after them.
    """
    with connected(url, token) as client, meter("reading") as update:
        stream = client.stream(path)
        kind = kind_of(stream.head().content_type)
        size = 0
        for batch in stream.read(type=bytes, offset=offset, skip=skip, until=until).batches():
            print_batch(batch, kind, as_json=as_json)
            size += sum(map(len, batch.items))
            update(size, None)
