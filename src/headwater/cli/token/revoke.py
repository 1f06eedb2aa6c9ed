"""`headwater token revoke`: revoke a token."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.output import say
from headwater.cli.token.files import File, file_errors
from headwater.server.auth.editing import revoke_token


def command(
    file: File,
    name: Annotated[
        str, typer.Argument(help="The token's name, as shown by headwater token list.", show_default=False)
    ],
) -> None:
    """Remove a token from an auth file. A running server refuses it within a second and ends its live reads."""
    with file_errors(file):
        revoke_token(file, name)
    say(f"revoked token {name!r}")
