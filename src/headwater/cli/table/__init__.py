"""`headwater table`: one file for each of its commands."""

from __future__ import annotations

import typer

from headwater.cli.connecting import with_server
from headwater.cli.table import append, compact, create, delete, export, notify, read, retain, tail, trim
from headwater.cli.table import import_ as importing
from headwater.cli.table import list as listing

app = typer.Typer(no_args_is_help=True, help="Tables that others follow by URL (State Transfer Protocol).")
for name, module in (
    ("create", create),
    ("append", append),
    ("import", importing),
    ("export", export),
    ("read", read),
    ("tail", tail),
    ("list", listing),
    ("notify", notify),
    ("retain", retain),
    ("trim", trim),
    ("compact", compact),
    ("delete", delete),
):
    app.command(name)(with_server(module.command))
