"""`headwater backup`: copy a data directory to a directory or a bucket, and show what a backup holds."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from headwater import limits
from headwater.cli.moments import parse_span
from headwater.cli.output import meter, print_json, print_table, say
from headwater.store.embedded.backup.backing_up import Copy, base_every_s, follow, open_backup
from headwater.store.embedded.backup.restoring import shown_ms
from headwater.store.embedded.backup.status import RestorableSpan, spans_of
from headwater.store.embedded.backup.targets import open_target

_TARGET = "A directory, or s3://bucket/prefix with credentials in the environment."


class _Group(TyperGroup):
    """`headwater backup DIRECTORY TARGET` is `headwater backup run DIRECTORY TARGET`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Back up a data directory, while its server runs or not: headwater backup DIRECTORY TARGET [--follow].",
    no_args_is_help=True,
)


@app.command()
def run(
    directory: Path = typer.Argument(help="The data directory, in use or not."),
    target: str = typer.Argument(help=_TARGET),
    follow_: bool = typer.Option(False, "--follow", help="Keep running: copy new data as it becomes durable."),
    every: float = typer.Option(
        limits.BACKUP_FOLLOW_S,
        min=0.05,
        metavar="SECONDS",
        help="With --follow: seconds between two checks for new data.",
    ),
    keep: str | None = typer.Option(
        None,
        metavar="SPAN",
        help="How far back moments can be restored, for example 30d; older data is removed. Default: keep everything.",
    ),
) -> None:
    """Copy the data that the target does not have yet. Restore it with: headwater restore."""
    keep_s = None if keep is None else parse_span(keep)
    if keep_s is not None and keep_s < limits.BACKUP_KEEP_S_MIN:
        raise ValueError(
            f"--keep must be at least 1 minute, got {keep}: a copy of the index would be made all the time"
        )
    os.nice(limits.FOLD_NICE)  # lower priority than the server
    with meter("copying") as update, open_backup(directory, open_target(target), update) as backup:
        if not follow_:
            done = backup.step(base_every_s(keep_s))
            removed = 0 if keep_s is None else backup.prune(keep_s)
            say(_summary(directory, target, done) + (f", removed {removed:,} files" if removed else ""))
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        say(f"backing up {directory} to {target} every {every:g} s")
        follow(backup, stop, every, keep_s, lambda text: say(f"headwater: {text}", err=True))


def _summary(directory: Path, target: str, done: Copy) -> str:
    base = " with a copy of the index" if done.bases else ""
    return f"backed up {directory} to {target}{base}: {done.bytes:,} bytes, up to {shown_ms(done.reached_ms)}"


@app.command()
def status(
    target: str = typer.Argument(help=_TARGET),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for programs."),
) -> None:
    """Show the moments that can be restored, and the lag of the backup."""
    spans = spans_of(open_target(target, limits.BACKUP_STATUS_S))
    if as_json:
        print_json(spans)
        return
    columns = ("timeline", "from", "to", "bases", "parts", "bytes", "problem")
    print_table([_row(span) for span in spans], columns, right=("bases", "parts", "bytes"), folding=("problem",))
    if spans:
        say(f"the newest is {max(0.0, time.time() - spans[-1].to_ms / 1000):,.1f} s behind")


def _row(span: RestorableSpan) -> dict[str, Any]:
    return {
        "timeline": span.timeline[:8],
        "from": shown_ms(span.from_ms),
        "to": shown_ms(span.to_ms),
        "bases": span.bases,
        "parts": span.parts,
        "bytes": f"{span.journal_bytes:,}",
        "problem": span.problem or None,
    }
