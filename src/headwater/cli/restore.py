"""`headwater restore`: restore a data directory from a backup, once, or continuously as a standby."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import typer

from headwater import limits
from headwater.cli.moments import parse_moment
from headwater.cli.output import meter, say
from headwater.store.embedded.backup.restoring import restore, shown_ms
from headwater.store.embedded.backup.standby import follow_target, open_standby
from headwater.store.embedded.backup.targets import BackupTarget, open_target
from headwater.store.embedded.layout import hand_over


def command(
    source: str = typer.Argument(help="The target of a backup: a directory, or s3://bucket/prefix."),
    to: Path = typer.Option(..., help="The data directory to create; it must not exist or be empty."),
    at: str | None = typer.Option(
        None,
        metavar="TIME",
        help="The moment to restore: 2030-01-01T00:00:00Z, or 15m for 15 minutes ago. The latest by default.",
    ),
    follow: bool = typer.Option(
        False, "--follow", help="Keep running as a standby: apply new data of the target. Later: headwater promote."
    ),
    every: float = typer.Option(
        limits.BACKUP_FOLLOW_S,
        min=0.05,
        metavar="SECONDS",
        help="With --follow: seconds between two checks for new data.",
    ),
    owner: str | None = typer.Option(
        None,
        metavar="USER[:GROUP]",
        help="Give the directory to a user, as root only. By default to the owner of the directory, if it exists.",
    ),
) -> None:
    """Restore a data directory from a backup, as it was at a moment. Serve it like any other."""
    if follow and at is not None:
        raise ValueError("--follow and --at exclude each other")
    who = _owner(to, owner)
    if follow:
        _stand_by(open_target(source), to, every, who)
        return
    at_ms = None if at is None else int(parse_moment(at, datetime.now(UTC)).timestamp() * 1000)
    with meter("restoring") as update:
        done = restore(open_target(source), to, at_ms, update)
    last = f", the last of {shown_ms(done.last_ms)}" if done.last_ms else ""
    say(f"restored {to} from {source}: a copy of the index and {done.batches:,} batches after it{last}")
    if who is not None:
        hand_over(to, *who)
    elif os.geteuid() == 0:
        say(f"headwater: {to} belongs to root; if its server is another user: chown -R USER {to}", err=True)


def _owner(to: Path, owner: str | None) -> tuple[int, int] | None:
    """Who gets the directory; None if it stays with the user of this command."""
    if owner is None:
        status = to.stat() if to.exists() else None
        return (status.st_uid, status.st_gid) if status is not None and os.geteuid() == 0 and status.st_uid else None
    user, _, group = owner.partition(":")
    if os.geteuid() != 0:
        raise ValueError("only root can give a directory to another user (--owner)")
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.chown(to, user, group or None)
    except LookupError as error:
        raise ValueError(f"--owner: {error}") from None
    status = to.stat()
    return status.st_uid, status.st_gid


def _stand_by(target: BackupTarget, to: Path, every: float, who: tuple[int, int] | None) -> None:
    if who is not None:
        os.setgid(who[1])
        os.setuid(who[0])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with meter("copying") as update, open_standby(to, target, update) as standby:
        say(f"{to} follows {target.url} every {every:g} s; promote it with: headwater promote {to}")
        follow_target(standby, stop, every, lambda text: say(f"headwater: {text}", err=True))
