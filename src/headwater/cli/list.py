"""`headwater list`: the streams of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater.cli.connecting import AsJson, Server, complete_path, connected
from headwater.cli.output import print_json, print_list
from headwater.cli.retaining import retention_text
from headwater.positions import is_in_snapshot

if TYPE_CHECKING:
    from headwater.client import StreamInfo

_FIRST_BYTE = f"_{0:016}"  # the end of the offset of a stream that begins with its first byte, which is not shown
COLUMNS = ["path", "bytes", "content_type", "closed", "created_at", "expires_at", "first_offset", "retention"]


def command(
    server: Server,
    prefix: Annotated[str, typer.Argument(help="Only paths with this prefix.", autocompletion=complete_path)] = "",
    as_json: AsJson = False,
) -> None:
    """List streams, their sizes, where they begin and what is kept, ordered by path.

    With --json, print one object per line.
    """
    with connected(server) as client:
        streams = client.list(prefix)
        if as_json:
            for info in streams:
                print_json(info)
        else:
            print_list([_row(info) for info in streams], COLUMNS)


def _row(info: StreamInfo) -> dict[str, Any]:
    first = info.first_offset
    begins = first if first is not None and (is_in_snapshot(first) or not first.endswith(_FIRST_BYTE)) else None
    return {**msgspec.structs.asdict(info), "first_offset": begins, "retention": retention_text(info.retention) or None}
