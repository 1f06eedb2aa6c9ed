"""`headwater serve`: run a server, whose flags are the options of `headwater.server.settings`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.failing import WRONG_CALL, fail, failures
from headwater.cli.flags import flag, parameter, with_flags
from headwater.cli.output import say, shown
from headwater.errors import OptionError
from headwater.protocol.streams.paths import CONSOLE, STREAM_ROOT
from headwater.server.observing.configuration import without_credentials
from headwater.server.observing.logs import configure
from headwater.server.settings import CONFIG, OPTIONS, as_toml, doubtful_variables, load_settings

log = logging.getLogger("headwater.server")

_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help=f"A TOML file with options. Or {CONFIG}.")
]
_PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print all options and the source of each as TOML, then exit.")
]


def _serve(config: Path | None, print_config: bool, **flags: Any) -> None:
    """Serve streams and tables over HTTP until Ctrl-C or SIGTERM.

    Every option can also be set in the environment, as HEADWATER_DATA_DIR, or in a file. Flags override the
    environment, which overrides the file.
    """
    from headwater.server.serve import check_files, serve

    try:
        loaded = load_settings(flags, os.environ, config)
    except OptionError as error:
        fail(str(error), "See: headwater serve --help", code=WRONG_CALL)
    settings = loaded.settings
    if print_config:
        for line in as_toml(loaded):
            say(line)
        with failures():
            check_files(settings)
        return
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    configure(level, settings.log_format)
    for doubt in doubtful_variables(os.environ):
        log.warning("%s", doubt)
    kept = "memory" if settings.memory else shown(str(settings.data_dir.absolute()))
    if settings.store is not None:
        kept = shown(without_credentials(settings.store))

    def ready(url: str) -> None:
        say(f"headwater serving streams at {url}{STREAM_ROOT} from {kept}")
        if settings.console:
            say(f"the console is at {url}{CONSOLE}")

    with failures(f"cannot listen on {settings.host}:{settings.port}"):
        code = serve(loaded, ready)
    raise typer.Exit(code)


_LIMITS = msgspec.structs.replace(OPTIONS["limits"], many=True)
command = with_flags(
    _serve,
    (
        parameter("config", _Config),
        *(
            flag(option, repeatable=True, name=f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else "")
            for option in OPTIONS.values()
            if option.name != "limits"
        ),
        flag(_LIMITS, repeatable=True, name="--limit"),
        parameter("print_config", _PrintConfig, default=False),
    ),
)
