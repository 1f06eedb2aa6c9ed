"""The `headwater` command: one file for each of its commands."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

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
    pipeline,
    read,
    restore,
    serve,
    table,
    tail,
    token,
    top,
)
from headwater.cli import list as listing
from headwater.cli.connecting import with_server
from headwater.cli.failing import fail, failures
from headwater.cli.output import say

_WRONG_CALL: type[Exception] = typer.BadParameter.__mro__[1]  # UsageError, which typer does not export


class _Commands(TyperGroup):
    """The group of commands. Errors, including usage errors, are printed as one line."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # for terminals with few characters
        try:
            with failures():
                code = self._run(*args, **more)
        except typer.Exit as exit_:
            code = exit_.exit_code
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(self, *args: Any, **more: Any) -> int:
        try:
            return int(super().main(*args, **{**more, "standalone_mode": False}) or 0)
        except _WRONG_CALL as wrong:
            error: Any = wrong
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                return int(error.exit_code)
            command = "headwater" if error.ctx is None else error.ctx.command_path
            fail(error.format_message(), f"See: {command} --help", code=error.exit_code)


app = typer.Typer(
    name="headwater",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ordered, durable streams of state changes over HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_STREAMS, _TABLES, _SPARK, _SERVER = "Streams", "Tables", "Spark", "Server"
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
    ("top", top, _SERVER),
    ("demo", demo, _SERVER),
    ("bench", bench, _SERVER),
    ("check", check, _SERVER),
    ("restore", restore, _SERVER),
):
    app.command(name, rich_help_panel=panel)(with_server(module.command))
app.add_typer(backup.app, name="backup", rich_help_panel=_SERVER)
app.add_typer(table.app, name="table", rich_help_panel=_TABLES)
app.add_typer(token.app, name="token", rich_help_panel=_SERVER)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=_SPARK)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Ordered, durable streams of state changes over HTTP."""


def main() -> None:
    app()
