"""The option --restart-if-gone: what a command does if data at its position was removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.output import say

if TYPE_CHECKING:
    from headwater.client import OnGone
    from headwater.errors import HeadwaterError

Restart = Annotated[
    bool,
    typer.Option(
        "--restart-if-gone",
        help="If data at the position was trimmed, or the stream or table was created again: say so on standard error, "
        "and begin again at the first data that is there. By default the command fails.",
    ),
]


def on_gone_of(restart: bool) -> OnGone:
    return _say if restart else "raise"


def _say(error: HeadwaterError) -> None:
    say(f"{error}; beginning again at the first data that is there", err=True)
