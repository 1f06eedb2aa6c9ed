"""The output of commands: text that is safe for a terminal, exact data, JSON, and progress.

All output of commands goes through this module. Names, keys, records and details of errors come from servers, and
control characters in them could change the screen or start a new line. They are escaped in all text for people, and in
data that goes to a terminal. In a pipe or a file, data is exact.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import typer

from headwater import limits

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format (bidi among them), surrogate, line ends
_JOINERS = "\u200c\u200d"  # format characters that some scripts and emoji need, and that are harmless


def shown(text: str, *, keep: str = "") -> str:
    """Text on one line: control characters, line ends and bidi marks become JSON escapes, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _is_unsafe(char) and char not in keep else char for char in text)


def _is_unsafe(char: str) -> bool:
    return not char.isprintable() and char not in _JOINERS and unicodedata.category(char) in _UNSAFE


def say(text: str, *, err: bool = False) -> None:
    """Print a line of text."""
    typer.echo(shown(text), err=err)


def write(data: bytes) -> None:
    """Write data: complete lines, or complete text and bytes."""
    if sys.stdout.isatty():
        write_text(data.decode(errors="backslashreplace"))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_text(text: str) -> None:
    """Write a part of a text to a terminal. Line ends and tabs are not escaped."""
    sys.stdout.write(shown(text, keep="\n\t"))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    import msgspec

    write(msgspec.json.encode(value) + b"\n")


def print_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    *,
    folding: Mapping[str, int] | Collection[str] = (),
    right: Collection[str] = (),
) -> None:
    """Print a table within the width of the terminal. Nothing is truncated: long cells are wrapped or listed.

    `folding` names the columns that may be wrapped, with their minimum widths. A column that is empty in all rows is
    left out. In a pipe or a file every row is one line.
    """
    from headwater.cli.layout import table_lines

    least = folding if isinstance(folding, Mapping) else dict.fromkeys(folding, limits.CLI_FOLDED_COLUMN_MIN)
    said = [name for name in columns if not rows or any(_says(row.get(name)) for row in rows)]
    is_terminal = sys.stdout.isatty()
    lines = table_lines(
        [name.replace("_", " ") for name in said],
        [[shown(_cell(row.get(name))) for name in said] for row in rows],
        width=_terminal_width() if is_terminal else None,
        folding={said.index(name): width for name, width in least.items() if name in said},
        right={said.index(name) for name in right if name in said},
    )
    is_styled = is_terminal and os.environ.get("TERM") != "dumb"
    for line, is_heading in lines:
        typer.echo(typer.style(line, bold=True) if is_heading and is_styled else line)


def _terminal_width() -> int:
    from rich.console import Console

    return Console().width


def print_list(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print a table of streams or tables, with thousands separators and times in UTC."""
    named = {"created_at": "created (UTC)", "expires_at": "expires (UTC)"}
    said = [{named.get(name, name): _brief(name, row.get(name)) for name in columns} for row in rows]
    titles = [named.get(name, name) for name in columns]
    folding = dict.fromkeys((titles[0], "content_type", "schema"), limits.CLI_FOLDED_COLUMN_MIN)
    folding |= dict.fromkeys(named.values(), len("2030-01-01"))
    print_table(said, titles, folding=folding, right=("bytes", "first_seqno", "last_seqno"))


def _brief(name: str, value: Any) -> Any:
    if name == "bytes" and isinstance(value, int):
        return f"{value:,}"
    return value[:16].replace("T", " ") if name.endswith("_at") and isinstance(value, str) else value


def _says(value: Any) -> bool:
    return value is not None and value is not False


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"headwater: {record.getMessage()}", err=True)


@contextlib.contextmanager
def warnings_said() -> Iterator[None]:
    """Print warnings that the program logs, such as that a request failed and is sent again."""
    logger, handler = logging.getLogger("headwater"), _Saying(logging.WARNING)
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


@contextlib.contextmanager
def meter(what: str, total_bytes: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error, shown on a terminal if the command takes longer than a second.

    Call it with the bytes that are done, and with the total if that has changed.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

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
