"""`headwater token add`: create a token."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.output import say
from headwater.cli.token.files import NOT_ASKED, Audit, File, after, audit, file_errors
from headwater.server.auth.editing import add_token
from headwater.server.auth.rules import parse_token_quota


def command(
    file: File,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", metavar="ACTION:GLOB", help="A scope that the token allows, as 'read:prices/**'. Repeatable."
        ),
    ],
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="SPAN", help="Time until it expires, as 12h or 30d.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="A name for lists and logs.", show_default=False)
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota",
            metavar="LIMITS",
            help="What the token may use, as 'streams=1000 bytes=10000000000 appends_per_s=100 live_readers=50'.",
            show_default=False,
        ),
    ] = None,
    audit_log: Audit = None,
) -> None:
    """Add a token to an auth file and print it. The file holds only its hash, so it cannot be shown again.

    The file is created if it does not exist.
    """
    moment = None if expires is None else after(expires)
    with file_errors(file):
        token, entry = add_token(file, name, scope, moment, None if quota is None else parse_token_quota(quota))
    audit(audit_log, "grant", entry.name)
    until = "" if moment is None else f", until {moment:%Y-%m-%d %H:%M} UTC"
    say(f"headwater: added token {entry.name!r} to {file}{until}; it is shown only now", err=True)
    say(f"headwater: {NOT_ASKED}", err=True)
    say(token)
