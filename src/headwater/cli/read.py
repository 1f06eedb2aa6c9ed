"""`headwater read`: print a stream, or a part of it."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.moments import parse_moment
from headwater.cli.output import meter
from headwater.cli.printing import batch_printer
from headwater.cli.restarting import Restart, on_gone_of
from headwater.log.content import kind_of
from headwater.positions import BEGINNING


def command(
    server: Server,
    path: Path,
    offset: str | None = typer.Option(
        None, "--offset", "-o", help="Where to start: an offset, -1 or now. Default: -1.", show_default=False
    ),
    since: str | None = typer.Option(
        None, help="Start with data appended since: 30s, 15m, 1h or 2d ago, or 2030-01-01T00:00:00Z."
    ),
    skip: int = typer.Option(0, min=0, help="Messages (bytes) to skip after that offset."),
    until: str | None = typer.Option(None, help="Where to end: print nothing at or after this offset."),
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Print the data of a stream: one message per line for a JSON stream, the bytes unchanged for any other.

    With --json each line is a batch with its messages and the offset after them.
    """
    moment = None if since is None else _moment(since)
    if offset is not None and since is not None:
        fail("--offset and --since exclude each other", "Give one of them.", code=WRONG_CALL)
    with connected(server, path) as client, meter("reading") as update:
        stream = client.stream(path)
        kind = kind_of(stream.head().content_type)
        size = 0
        begin = stream.offset_at(moment) if moment is not None else offset or BEGINNING
        with batch_printer(kind, as_json=as_json) as show:
            reader = stream.read(type=bytes, offset=begin, skip=skip, until=until, on_gone=on_gone_of(restart))
            for batch in reader.batches():
                show(batch)
                size += sum(map(len, batch.items))
                update(size, None)


def _moment(text: str) -> datetime:
    try:
        return parse_moment(text, datetime.now(UTC))
    except ValueError as error:
        fail(f"--since: {error}", "See: headwater read --help", code=WRONG_CALL)
