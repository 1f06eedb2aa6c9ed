"""`headwater pipeline`: the jobs, whose flags are the options of `headwater.pipeline.options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.connecting import DEFAULT_URL, AsJson
from headwater.cli.flags import flag, parameter, with_flags
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import watching
from headwater.cli.pipeline.config import (
    KINDS,
    PipelineFile,
    SessionOptions,
    job_options,
    layered,
    load_pipeline,
    names_in,
    session_options,
    tables_parsed,
)
from headwater.cli.pipeline.exit_codes import exits
from headwater.options import Option, options_of, read_toml
from headwater.pipeline.options import JobOptions

_HELP = {
    "archive": "Keep every message of streams in a Delta table.",
    "replay": "Write an archive back to streams, byte for byte.",
    "materialize": "Keep the current state, or the history, of state streams in a Delta table.",
    "publish": "Publish the changes of a Delta table to a state stream or a table.",
    "snapshot": "Make snapshots of state streams, from which new readers can start.",
}
_ENVIRONMENT = {
    "url": f" Default: {DEFAULT_URL}. Or HEADWATER_URL.",
    "token": " Or HEADWATER_TOKEN.",
}

app = typer.Typer(
    no_args_is_help=True,
    help="Jobs over streams on Spark: archive, replay, materialize, publish, snapshot.",
)


def _command(kind: type[JobOptions]) -> Callable[..., None]:
    """Make a command with a flag for each option. No flag is required, because options can be in a file."""

    def command(config: Path | None, **flags: Any) -> None:
        with exits(f"See: headwater pipeline {kind.job} --help"):
            file = {} if config is None else tables_parsed(read_toml(config), str(config))
            options_by_name = layered(file, tables_parsed(_set_flags(flags), "the options"))
            session = {name: options_by_name.pop(name) for name in names_in(SessionOptions) if name in options_by_name}
            where = "the options" if config is None else str(config)
            options = job_options(kind, options_by_name, where)
            jobs = {str(kind.job): options}
            watching.run(PipelineFile(session_options(session, where), jobs))

    config = typer.Option("--config", help="A TOML file with the options.", show_default=False)
    flags = [_flag(option) for option in (*options_of(kind), *options_of(SessionOptions))]
    command.__doc__ = _HELP[kind.job]
    return with_flags(command, [parameter("config", Annotated[Path | None, config]), *flags])


def _set_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given. One that is repeatable and was not is an empty list."""
    return {name: value for name, value in flags.items() if value is not None and value != []}


def _flag(option: Option) -> inspect.Parameter:
    name = f"{option.flag}/--no-{option.flag[2:]}" if option.default is True else ""
    return flag(option, name=name, note=_ENVIRONMENT.get(option.name, ""))


for _kind in KINDS.values():
    app.command(_kind.job)(_command(_kind))

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with a table [jobs.NAME] for each job.")]


def run(file: Path, once: bool, **flags: Any) -> None:
    """Run the jobs of a file in one Spark session.

    With --once, a job that reads a table or stream which another job writes runs after it. Flags override the file.
    """
    with exits():
        watching.run(load_pipeline(file, {**_set_flags(flags), **({"once": True} if once else {})}))


def status(file: Path, as_json: bool, **flags: Any) -> None:
    """Show the position and lag of the jobs of a file, without starting Spark. Flags override the file."""
    with exits():
        pipeline = load_pipeline(file, _set_flags(flags))
        from headwater.cli.pipeline.positions import as_row, status_of

        statuses = [status_of(name, options) for name, options in pipeline.jobs.items()]
        if as_json:
            print_json(statuses)
            return
        columns = ("job", "kind", "position", "lag", "most_of_it_in")
        print_table([as_row(one) for one in statuses], columns, folding=("most_of_it_in",), right=("lag",))


_once = typer.Option("--once", help="Process the data that is there now, and exit.")
_file = parameter("file", _File, inspect.Parameter.empty)
_connection = [_flag(option) for option in options_of(JobOptions)]
_session = [_flag(option) for option in options_of(SessionOptions)]
app.command("run")(with_flags(run, [_file, parameter("once", Annotated[bool, _once], False), *_connection, *_session]))
app.command("status")(with_flags(status, [_file, *_connection, parameter("as_json", AsJson, False)]))
