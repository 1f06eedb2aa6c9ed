"""The `headwater` command: one module for each of its commands.

`main` imports only the module of the command that is run, and none for `--version`. What a module of a command imports
is what every call of it waits for, so libraries that only some calls need are imported where they are used.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from headwater import __version__
from headwater.cli.failing import fail, failures
from headwater.cli.output import say

_WRONG_CALL: type[Exception] = typer.BadParameter.__mro__[1]  # UsageError, which typer does not export


def _display_type(option: TyperOption, ctx: Any) -> str | None:
    """The type column of an option in `--help`: empty for a flag, which takes no value."""
    return None if option.is_flag else _display_type_of_typer(option, ctx)


_display_type_of_typer = TyperOption.display_type_rich
TyperOption.display_type_rich = _display_type  # type: ignore[assignment]  # it shows <bool>, and has no setting for it


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
            what = error.format_message().replace(": Value error, ", ": ")  # words of pydantic, which typer uses
            fail(what, f"See: {command} --help", code=error.exit_code)


_STREAMS, _WORKERS, _TABLES, _SPARK, _SERVER = "Streams", "Workers", "Tables", "Spark", "Server"
COMMANDS = {  # with their panels in `headwater --help`
    "create": _STREAMS,
    "append": _STREAMS,
    "read": _STREAMS,
    "tail": _STREAMS,
    "head": _STREAMS,
    "state": _STREAMS,
    "list": _STREAMS,
    "close": _STREAMS,
    "fork": _STREAMS,
    "retain": _STREAMS,
    "trim": _STREAMS,
    "compact": _STREAMS,
    "delete": _STREAMS,
    "subscription": _WORKERS,
    "work": _WORKERS,
    "sql": _STREAMS,
    "follow": _TABLES,
    "serve": _SERVER,
    "top": _SERVER,
    "usage": _SERVER,
    "demo": _SERVER,
    "bench": _SERVER,
    "check": _SERVER,
    "restore": _SERVER,
    "copy": _SERVER,
    "promote": _SERVER,
    "backup": _SERVER,
    "table": _TABLES,
    "token": _SERVER,
    "pipeline": _SPARK,
}


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        name="headwater",
        cls=_Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Ordered, durable streams of state changes over HTTP.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # joins the lines of a paragraph
    )
    app.callback()(_options)
    for name in names:
        from headwater.cli.connecting import with_server

        module = importlib.import_module(f"headwater.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, rich_help_panel=COMMANDS[name])
        else:
            app.command(name, rich_help_panel=COMMANDS[name])(with_server(module.command))
    return app


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"headwater {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Ordered, durable streams of state changes over HTTP."""


def main() -> None:
    make_app(_named(sys.argv[1:]))(prog_name="headwater")


def _named(arguments: Sequence[str]) -> Iterable[str]:
    """The commands that a call may need: the one that it names, all for help and for advice on a wrong name."""
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is None and "--version" in arguments:
        return ()
    return [name] if name in COMMANDS else COMMANDS
