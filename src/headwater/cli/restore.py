"""`headwater restore`: restore a data directory from a backup."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import typer

from headwater.cli.moments import parse_moment
from headwater.cli.output import meter, say
from headwater.store.embedded.backup.restoring import restore, shown_ms
from headwater.store.embedded.backup.targets import open_target


def command(
    source: str = typer.Argument(help="The target of a backup: a directory, or s3://bucket/prefix."),
    to: Path = typer.Option(..., help="The data directory to create; it must not exist or be empty."),
    at: str | None = typer.Option(
        None,
        metavar="TIME",
        help="The moment to restore: 2030-01-01T00:00:00Z, or 15m for 15 minutes ago. The latest by default.",
    ),
) -> None:
    """Restore a data directory from a backup, as it was at a moment. Serve it like any other."""
    at_ms = None if at is None else int(parse_moment(at, datetime.now(UTC)).timestamp() * 1000)
    with meter("restoring") as update:
        done = restore(open_target(source), to, at_ms, update)
    last = f", the last of {shown_ms(done.last_ms)}" if done.last_ms else ""
    say(f"restored {to} from {source}: a copy of the index and {done.batches:,} batches after it{last}")
