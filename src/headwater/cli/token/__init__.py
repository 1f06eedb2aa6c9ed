"""`headwater token`: one file for each of its commands."""

from __future__ import annotations

import typer

from headwater.cli.token import add, revoke, sign
from headwater.cli.token import list as listing

app = typer.Typer(no_args_is_help=True, help="Tokens that a server started with --auth FILE accepts.")
for name, module in (("add", add), ("list", listing), ("revoke", revoke), ("sign", sign)):
    app.command(name)(module.command)
