"""`headwater check`: verify a data directory that no server is using."""

from __future__ import annotations

from pathlib import Path

import typer

from headwater.cli.output import say
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.salvage import salvage_directory


def command(
    directory: Path = typer.Argument(help="The data directory."),
    salvage: bool = typer.Option(
        False,
        "--salvage",
        help="Cut the journal before its first damage. Everything after it is moved to files named *.damaged, and "
        "readers no longer see it. Copy the directory first.",
    ),
) -> None:
    """Verify checksums, order and references of a data directory.

    A server does not start with a damaged journal, because the data after the damage was acknowledged. Restore a
    backup, or accept the loss with --salvage.
    """
    if salvage:
        done = salvage_directory(directory)
        say(f"kept {done.kept_batches:,} batches, set aside {done.dropped_bytes:,} bytes")
        for name in done.set_aside:
            say(f"  {name}")
    report = check_directory(directory, lambda step: say(f"checking {step} …", err=True))
    say(
        f"{report.streams:,} streams, {report.bytes:,} bytes in {report.chunks:,} chunks, "
        f"{report.batches:,} batches in the journal"
    )
    for problem in report.problems:
        say(f"problem: {problem}", err=True)
    say("everything is in order" if not report.problems else f"{len(report.problems)} problems")
    raise typer.Exit(1 if report.problems else 0)
