"""`headwater backup`: copy a data directory while its server runs."""

from __future__ import annotations

from pathlib import Path

import typer

from headwater.cli.output import meter, say
from headwater.store.embedded.backup import back_up


def command(
    directory: Path = typer.Argument(help="The data directory, in use or not."),
    target: Path = typer.Argument(help="Where to put the copy; must not exist or be empty."),
) -> None:
    """Take a consistent copy of a data directory. Serve it like any other to restore it."""
    with meter("copying") as update:
        back_up(directory, target, update)
    say(f"backed up {directory} to {target}")
