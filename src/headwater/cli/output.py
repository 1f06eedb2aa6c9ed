"""What commands print: text that a terminal cannot take for commands, data as it is, JSON, and progress.

Everything that a command prints goes through here. Names, keys, records and details of errors come from servers, and
control characters in them could rewrite the screen or begin a line of their own. They are escaped in everything that
is for people, and in data when it goes to a terminal. In a pipe or a file data is exact.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

from headwater import limits
from headwater.cli.layout import table_lines

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format (bidi among them), surrogate, line ends
_JOINERS = "\u200c\u200d"  # format characters that scripts and emoji need, and that change nothing else


def shown(text: str, *, keep: str = "") -> str:
    """Text for people on one line: control characters, line ends and bidi marks as JSON escapes them, except `keep`."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _is_unsafe(char) and char not in keep else char for char in text)


def _is_unsafe(char: str) -> bool:
    return not char.isprintable() and char not in _JOINERS and unicodedata.category(char) in _UNSAFE


def say(text: str, *, err: bool = False) -> None:
    """A line for people."""
    typer.echo(shown(text), err=err)


def write(data: bytes) -> None:
    """Data: whole lines of it, or text and bytes that are complete."""
    if sys.stdout.isatty():
        write_text(data.decode(errors="backslashreplace"))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_text(text: str) -> None:
    """A part of a text on a terminal. Its line ends and tabs are its own."""
    sys.stdout.write(shown(text, keep="\n\t"))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    write(msgspec.json.encode(value) + b"\n")


def print_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    *,
    folding: Mapping[str, int] | Collection[str] = (),
    right: Collection[str] = (),
) -> None:
    """A table for people, within the columns of a terminal. Nothing is cut: what is too long is folded or listed.

    `folding` names the columns that may be folded, with the least width of each if it matters. A column that has
    nothing to say of any row is left out. In a pipe or a file every row is one line.
    """
    least = folding if isinstance(folding, Mapping) else dict.fromkeys(folding, limits.CLI_FOLDED_COLUMN_MIN)
    said = [name for name in columns if not rows or any(_says(row.get(name)) for row in rows)]
    is_terminal = sys.stdout.isatty()
    lines = table_lines(
        [name.replace("_", " ") for name in said],
        [[shown(_cell(row.get(name))) for name in said] for row in rows],
        width=Console().width if is_terminal else None,
        folding={said.index(name): width for name, width in least.items() if name in said},
        right={said.index(name) for name in right if name in said},
    )
    is_styled = is_terminal and os.environ.get("TERM") != "dumb"
    for line, is_heading in lines:
        typer.echo(typer.style(line, bold=True) if is_heading and is_styled else line)


def print_list(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """A table of streams or tables: sizes with separators, and times to the minute in UTC."""
    named = {"created_at": "created (UTC)", "expires_at": "expires (UTC)"}
    said = [{named.get(name, name): _brief(name, row.get(name)) for name in columns} for row in rows]
    titles = [named.get(name, name) for name in columns]
    folding = dict.fromkeys((titles[0], "content_type", "schema"), limits.CLI_FOLDED_COLUMN_MIN)
    folding |= dict.fromkeys(named.values(), len("2030-01-01"))
    print_table(said, titles, folding=folding, right=("bytes", "last_seqno"))


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
