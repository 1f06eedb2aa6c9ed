"""`headwater delete`: delete a stream, or everything below a prefix of paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.below import act_below
from headwater.cli.connecting import AsJson, Server, complete_path, connected
from headwater.cli.output import print_json, say

if TYPE_CHECKING:
    from headwater.client import Stream, Table


def command(
    server: Server,
    path: Annotated[
        str, typer.Argument(help="The stream's path, or its whole URL.", autocompletion=complete_path)
    ] = "",
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="PATH", help="Delete all streams and tables at and below this path.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --prefix deletes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a stream and its data permanently. Forks keep the data that they inherited.

    With --prefix, delete all streams and tables at and below a path. If some cannot be deleted, the others are, and the
    exit code is 1. Run the command again to continue after an interruption.
    """
    if (prefix is None) == (not path):
        raise typer.BadParameter("give the path of a stream, or --prefix", param_hint="PATH")
    if prefix is not None:
        question = "Delete {count} streams and tables at and below {prefix} permanently?"
        below = prefix.strip("/")
        act_below(server, below, _delete, done="deleted", question=question, yes=yes, as_json=as_json)
        return
    with connected(server, path) as client:
        stream = client.stream(path)
        stream.delete()
    if as_json:
        print_json({"url": stream.url, "deleted": True})
    else:
        say(f"deleted {stream.url}")


def _delete(target: Stream | Table) -> None:
    target.delete()
