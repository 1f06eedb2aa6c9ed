"""`headwater token revoke`: revoke a token."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.output import say
from headwater.cli.token.files import NOT_ASKED, Audit, File, audit, file_errors
from headwater.server.auth.editing import revoke_token


def command(
    file: File,
    name: Annotated[
        str, typer.Argument(help="The token's name, as shown by headwater token list.", show_default=False)
    ],
    audit_log: Audit = None,
) -> None:
    """Remove a token from an auth file. A server that uses the file refuses it within a second and ends its live reads.

    The command does not ask the server: if it cannot read the file, the token stays valid and /readyz has a warning.
    """
    with file_errors(file):
        revoke_token(file, name)
    audit(audit_log, "revoke", name)
    say(f"revoked token {name!r}")
    say(f"headwater: it was removed from {file}; {NOT_ASKED}", err=True)
