"""Common parts of the token commands: the file argument, time spans, and errors of the file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from headwater.cli.failing import fail
from headwater.server.observing.audit import append_line

File: TypeAlias = Annotated[Path, typer.Argument(help="The auth file.", show_default=False)]

NOT_ASKED = "no server was asked; one that uses the file loads it within a second, and warns in /readyz if it cannot"

Audit: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--audit-log", metavar="FILE", envvar="HEADWATER_AUDIT_LOG", help="Append who did this to an audit log."
    ),
]

_SPAN = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_span(text: str) -> timedelta:
    match = _SPAN.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(
            f"expected a time from now, as 45m, 12h or 30d, got {text[:40]!r}", param_hint="--expires"
        )
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def after(text: str) -> datetime:
    try:
        return (datetime.now(UTC) + parse_span(text)).replace(microsecond=0)
    except OverflowError:
        raise typer.BadParameter(f"{text} is too far from now", param_hint="--expires") from None


def audit(log: Path | None, action: str, name: str) -> None:
    """Record a change of a token in the audit log, if there is one."""
    if log is None:
        return
    try:
        append_line(str(log), action, name)
    except OSError as error:
        fail(f"the change was made, but the audit log {log} cannot be written: {error.strerror}")


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        fail(str(error), "Nothing was changed.")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", "Check the path and its permissions.")
