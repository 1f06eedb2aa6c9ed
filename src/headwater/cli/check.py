"""`headwater check`: verify a data directory that no server is using."""

from __future__ import annotations

from pathlib import Path

import typer

from headwater.cli.output import say
from headwater.store.embedded.checking import CheckReport, check_directory
from headwater.store.embedded.salvage import salvage_directory
from headwater.store.embedded.timelines import begin_timeline as begin


def _advice(directory: Path, report: CheckReport) -> str:
    restore = "Restore a backup to a new directory: headwater restore TARGET --to NEW"
    if report.is_cut:
        return f"{restore}. Or copy the directory and accept the loss: headwater check {directory} --salvage"
    return restore


def command(
    directory: Path = typer.Argument(help="The data directory."),
    salvage: bool = typer.Option(
        False,
        "--salvage",
        help="Cut the journal before its first damage or missing segment. Everything after it is moved to files named "
        "*.damaged, and readers no longer see it. This says what is lost. Copy the directory first.",
    ),
    begin_timeline: bool = typer.Option(
        False,
        "--begin-timeline",
        help="Use this after you have set the directory back to an earlier state yourself, for example with a snapshot "
        "of its disk: offsets of the lost data are refused from then on. `restore` and `--salvage` do it themselves.",
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
        for lost in done.lost:
            say(f"lost: {lost}")
    if begin_timeline:
        say(f"began timeline {begin(directory)}")
    report = check_directory(directory, lambda step: say(f"checking {step} …", err=True))
    say(
        f"{report.streams:,} streams, {report.bytes:,} bytes in {report.chunks:,} chunks, "
        f"{report.batches:,} batches in the journal"
    )
    for problem in report.problems:
        say(f"problem: {problem}", err=True)
    say("everything is in order" if not report.problems else f"{len(report.problems)} problems")
    if report.problems:
        say(_advice(directory, report), err=True)
    raise typer.Exit(1 if report.problems else 0)
