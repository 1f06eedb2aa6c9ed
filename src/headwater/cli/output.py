"""What commands print: tables for people, JSON for programs, progress on anything that takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn
from rich.table import Table

from headwater import limits


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.encode(value).decode())


def print_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    """A table with colours on a terminal. Its lines are never cut: what is too long for a terminal it wraps itself."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(highlight=False, width=limits.CLI_TABLE_COLUMNS_MAX).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def meter(what: str, total_bytes: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error, if that is a terminal and once it takes longer than a second.

    It is told how many bytes are done, and of how many if that has changed.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=total_bytes)
    started_s = time.monotonic()

    def update(done: int, total: int | None) -> None:
        if not progress.live.is_started and time.monotonic() - started_s >= limits.CLI_PROGRESS_AFTER_S:
            progress.start()
        progress.update(task, completed=done, total=total_bytes if total is None else total)

    try:
        yield update
    finally:
        progress.stop()
