"""`headwater tail`: follow a stream as it grows."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.printing import batch_printer
from headwater.cli.restarting import Restart, on_gone_of
from headwater.log.content import kind_of

if TYPE_CHECKING:
    from headwater.client import LiveMode


class LiveOption(StrEnum):
    AUTO = "auto"
    SSE = "sse"
    LONG_POLL = "long-poll"


_MODES: dict[LiveOption, LiveMode] = {LiveOption.AUTO: True, LiveOption.SSE: "sse", LiveOption.LONG_POLL: "long-poll"}


def command(
    server: Server,
    path: Path,
    offset: str = typer.Option("now", "--offset", "-o", help="Where to start: an offset, -1 or now."),
    live: LiveOption = typer.Option(LiveOption.AUTO, help="How to follow; auto chooses the mode that works."),
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Print new data as it is appended, until the stream is closed or Ctrl-C. Lost connections are retried."""
    with connected(server, path) as client:
        stream = client.stream(path)
        kind = kind_of(stream.head().content_type)
        with batch_printer(kind, as_json=as_json) as show:
            reader = stream.read(type=bytes, offset=offset, live=_MODES[live], on_gone=on_gone_of(restart))
            for batch in reader.batches():
                if batch.items or as_json:
                    show(batch)
