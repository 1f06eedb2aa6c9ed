"""The command line with all of its commands, in the process of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer.main
from click.testing import CliRunner, Result

from headwater.cli import make_app

app = make_app()
# Made once: Typer's own runner makes all commands anew for each call. It has a copy of Click, so the types differ.
command: Any = typer.main.get_command(app)


def invoke(arguments: Sequence[str], **more: Any) -> Result:
    """Run a command. `more` is what `CliRunner.invoke` takes."""
    return CliRunner().invoke(command, list(arguments), **more)
