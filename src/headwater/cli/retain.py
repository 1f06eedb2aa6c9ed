"""`headwater retain`: what is kept of a stream, or of everything below a prefix of paths."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.below import act_below
from headwater.cli.connecting import AsJson, Server, complete_path, connected
from headwater.cli.retaining import (
    Bytes,
    CompactAfter,
    CompactOrNot,
    Forever,
    Messages,
    RetentionOptions,
    Seconds,
    changes_of,
    retain,
)


def command(
    server: Server,
    path: Annotated[
        str, typer.Argument(help="The stream's path, or its whole URL.", autocompletion=complete_path)
    ] = "",
    seconds: Seconds = None,
    bytes: Bytes = None,  # noqa: A002
    messages: Messages = None,
    compact: CompactOrNot = None,
    compact_after: CompactAfter = None,
    forever: Forever = False,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="PATH", help="Change all streams and tables at and below this path.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --prefix changes anything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change what is kept of a stream. Without options, show it.

    What is no longer to be kept is removed at once. Options that are not given stay as they are.
    """
    options = RetentionOptions(seconds, bytes, messages, compact, compact_after)
    if (prefix is None) == (not path):
        raise typer.BadParameter("give the path of a stream, or --prefix", param_hint="PATH")
    if prefix is not None:
        changes = changes_of(options, forever=forever)
        if not changes:
            raise typer.BadParameter("name what is to be kept, or --forever", param_hint="--prefix")
        question = "Change what is kept of {count} streams and tables at and below {prefix}, and delete the rest?"
        below = prefix.strip("/")
        act_below(
            server,
            below,
            lambda target: target.retain(**changes),
            done="changed",
            question=question,
            yes=yes,
            as_json=as_json,
        )
        return
    with connected(server, path) as client:
        retain(client.stream(path), options, forever=forever, as_json=as_json)
