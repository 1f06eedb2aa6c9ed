"""The `headwater` command: one file for each of its commands."""

from __future__ import annotations

import typer

from headwater import __version__
from headwater.cli import backup, check, serve

app = typer.Typer(
    name="headwater",
    help="Changing state, in step across machines and organisations, over plain HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.command)
app.command("check")(check.command)
app.command("backup")(backup.command)


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
    """Changing state, in step across machines and organisations, over plain HTTP."""


def main() -> None:
    app()
