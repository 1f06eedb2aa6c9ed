"""The `headwater` command: one file for each of its commands."""

from __future__ import annotations

import typer

from headwater import __version__
from headwater.cli import (
    append,
    backup,
    bench,
    check,
    close,
    create,
    delete,
    demo,
    follow,
    fork,
    head,
    read,
    serve,
    table,
    tail,
)
from headwater.cli import list as listing

app = typer.Typer(
    name="headwater",
    help="Ordered, durable streams of state changes over HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_STREAMS, _TABLES, _SERVER = "Streams", "Tables", "Server"
for name, module, panel in (
    ("create", create, _STREAMS),
    ("append", append, _STREAMS),
    ("read", read, _STREAMS),
    ("tail", tail, _STREAMS),
    ("head", head, _STREAMS),
    ("list", listing, _STREAMS),
    ("close", close, _STREAMS),
    ("fork", fork, _STREAMS),
    ("delete", delete, _STREAMS),
    ("follow", follow, _TABLES),
    ("serve", serve, _SERVER),
    ("demo", demo, _SERVER),
    ("bench", bench, _SERVER),
    ("check", check, _SERVER),
    ("backup", backup, _SERVER),
):
    app.command(name, rich_help_panel=panel)(module.command)
app.add_typer(table.app, name="table", rich_help_panel=_TABLES)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Show the version and leave.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Ordered, durable streams of state changes over HTTP."""


def main() -> None:
    app()
