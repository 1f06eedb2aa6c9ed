"""`headwater promote`: make a standby the data directory that takes writes, and fence the server before it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import typer

from headwater import limits
from headwater.cli.output import say
from headwater.elapsed import elapsed_s
from headwater.store.embedded import layout, locking
from headwater.store.embedded.backup import leases
from headwater.store.embedded.backup.failures import BackupError, TargetError
from headwater.store.embedded.backup.restoring import shown_ms
from headwater.store.embedded.backup.standby import PASSING, Standby, open_promotion, remove_leftovers, source_of
from headwater.store.embedded.backup.targets import BackupTarget, check_claimed, open_target
from headwater.store.embedded.layout import hand_over


def command(
    directory: Path = typer.Argument(help="A standby (headwater restore --follow), or a restored data directory."),
    target: str | None = typer.Option(
        None, metavar="TARGET", help="The target with the lease, for a data directory. A standby knows its own."
    ),
    force: bool = typer.Option(
        False,
        "--force",
        help="Do not wait for the end of the old server's lease, and go on if the target does not answer. Only if the "
        "old server is stopped for good.",
    ),
) -> None:
    """Take the lease from the old server, wait until it takes no more writes, and make a standby servable."""
    source = source_of(directory)
    if source is None and not (directory / layout.FORMAT_NAME).exists():
        if not (directory / layout.STANDBY).exists():
            raise BackupError(f"{directory} is not a standby or a data directory. Check the path.")
        command = f"headwater restore TARGET --to {directory} --follow"
        raise BackupError(f"{directory} is a standby without data. Let it copy a backup first: {command}")
    where = target or (None if source is None else source.target)
    if where is None:
        raise ValueError(f"{directory} is a data directory; name the target with the lease: --target TARGET")
    opened = open_target(where)
    if (directory / layout.FORMAT_NAME).exists():
        _promote_directory(directory, opened, force=force)
    else:
        _promote_standby(directory, opened, force=force)
    if os.geteuid() == 0:
        owner = directory.stat()
        hand_over(directory, owner.st_uid, owner.st_gid)
    say(f"promoted {directory}. Serve it with: headwater serve --data-dir {directory} --lease {where}")


def _promote_standby(directory: Path, target: BackupTarget, *, force: bool) -> None:
    with open_promotion(directory, target) as standby:
        if not standby.is_moved:
            _take_lease(directory, target, _following(standby), force=force)
            try:
                applied = standby.step()
                say(f"it has everything that the target has, up to {shown_ms(applied.reached_ms)}")
            except PASSING as error:
                if not force:
                    raise
                _warn(f"the last data of the target is not applied: {error}")
        standby.promote()


def _promote_directory(directory: Path, target: BackupTarget, *, force: bool) -> None:
    lock = locking.own(directory)
    try:
        _take_lease(directory, target, time.sleep, force=force)
        remove_leftovers(directory)
    finally:
        lock.release()


def _take_lease(directory: Path, target: BackupTarget, wait: Callable[[float], None], *, force: bool) -> None:
    owner = leases.directory_id(directory)
    try:
        if force:
            leases.force(target, owner)
        else:
            check_claimed(target)
            leases.promote(target, owner, wait=wait, report=say)
    except TargetError as error:
        if not force:
            raise
        _warn(f"the lease is not taken, so the old server is not fenced: {error}")


def _following(standby: Standby) -> Callable[[float], None]:
    """Wait, and apply new data meanwhile."""

    def wait(seconds: float) -> None:
        until_s = elapsed_s() + seconds
        while (left_s := until_s - elapsed_s()) > 0:
            with contextlib.suppress(*PASSING):
                standby.step()
            time.sleep(max(0.0, min(left_s, limits.BACKUP_FOLLOW_S)))

    return wait


def _warn(text: str) -> None:
    say(f"headwater: {text}", err=True)
