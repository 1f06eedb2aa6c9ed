"""`headwater subscription`: one file for each of its commands."""

from __future__ import annotations

import typer

from headwater.cli.connecting import with_server
from headwater.cli.subscription import create, delete, show
from headwater.cli.subscription import list as listing

app = typer.Typer(no_args_is_help=True, help="Durable cursors over streams, which wake workers or call webhooks.")
for name, module in (("create", create), ("list", listing), ("show", show), ("delete", delete)):
    app.command(name)(with_server(module.command))
