"""The argument for the name of a table, with shell completion."""

from __future__ import annotations

import itertools
from typing import Annotated, TypeAlias

import typer

from headwater import limits
from headwater.cli.connecting import quick_client
from headwater.errors import HeadwaterError


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a table for the shell; nothing if the server does not respond quickly."""
    most = limits.CLI_COMPLETE_PATHS_MAX
    try:
        with quick_client(context) as client:
            return [info.name for info in itertools.islice(client.tables(incomplete, page_size=most), most)]
    except (HeadwaterError, ValueError):
        return []


Name: TypeAlias = Annotated[str, typer.Argument(help="The table's name, or its SURL.", autocompletion=complete_name)]
