"""Opening a data directory: lock and recover it, and create the store."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headwater.limits import INDEX_READERS, Limits
from headwater.store.contract import Space
from headwater.store.embedded import index, layout, locking, newest
from headwater.store.embedded.backup.watching import backups_of
from headwater.store.embedded.disk import RealDisk, Reserve
from headwater.store.embedded.folder import SubprocessFolder
from headwater.store.embedded.journal import UnknownFormatError
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.store import EmbeddedStore, Parts
from headwater.store.embedded.syncing import best_syncer
from headwater.store.embedded.threads import ThreadRunner


def open_store(directory: Path, limits: Limits) -> EmbeddedStore:
    """Open the store of a directory, which is created if it does not exist. This blocks the calling thread."""
    is_new = _check_claim(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = locking.own(directory)
    try:
        if is_new:
            _create(directory)
        layout.check_format(directory)
        with layout.index_errors(directory):
            return open_recovered(directory, limits, lock)
    except BaseException:
        lock.release()
        raise


def _check_claim(directory: Path) -> bool:
    """Whether the directory must be created. A directory with other files is refused and not changed."""
    if (directory / layout.FORMAT_NAME).exists():
        return False
    layout.check_finished(directory)
    if directory.exists():
        layout.check_unused(directory)
    ours = {locking.OWNER, locking.FOLD, layout.JOURNAL_DIR, layout.INDEX_NAME, f"{layout.FORMAT_NAME}.new"}
    if directory.exists() and any(path.name.partition("-")[0] not in ours for path in directory.iterdir()):
        raise UnknownFormatError(f"{directory} is not empty and not a Headwater data directory")
    return True


def _create(directory: Path) -> None:
    """Create a directory. The FORMAT file is written last, because it marks the directory as complete."""
    if (directory / layout.FORMAT_NAME).exists():
        return  # created by another process in the meantime
    (directory / layout.JOURNAL_DIR).mkdir(mode=0o700, exist_ok=True)
    for leftover in directory.glob(f"{layout.INDEX_NAME}*"):
        leftover.unlink()
    index.create(directory / layout.INDEX_NAME)
    newest.create(RealDisk(directory / layout.JOURNAL_DIR), index.Meta().folded)
    layout.write_format(directory)


def open_recovered(directory: Path, limits: Limits, lock: locking.DirectoryLock) -> EmbeddedStore:
    """Open the store of a locked directory, which releases the lock when it is closed."""
    disk = RealDisk(directory / layout.JOURNAL_DIR)
    reserve = Reserve(RealDisk(directory), limits.disk_reserve_bytes)
    reserve.release()  # recovery may need the space; the store allocates it again

    def connect() -> index.IndexReader:
        return index.IndexReader(index.connect(directory / layout.INDEX_NAME, write=False))

    connection = index.connect(directory / layout.INDEX_NAME, write=False)
    try:
        index.check_format(connection)
        recovered = recover(disk, index.IndexReader(connection))
    finally:
        connection.close()
    parts = Parts(
        disk=disk,
        connect=connect,
        syncer=best_syncer(),
        helper=ThreadRunner("headwater-spare"),
        writer=ThreadRunner("headwater-write"),
        folder=SubprocessFolder(directory),
        readers=ThreadPoolExecutor(INDEX_READERS, "headwater-read"),
        salt=lambda: secrets.randbits(32),
        reserve=reserve,
        release=lock.release,
        space=lambda: _space(directory),
    )
    return EmbeddedStore(parts, recovered, limits)


def _space(directory: Path) -> Space:
    room = os.statvfs(directory)
    return Space(
        index_bytes=_size(directory.glob(f"{layout.INDEX_NAME}*")),
        journal_bytes=_size((directory / layout.JOURNAL_DIR).iterdir()),
        free_bytes=room.f_bavail * room.f_frsize,
        backups=backups_of(directory),
    )


def _size(paths: Iterable[Path]) -> int:
    """The total size of files. Files that were removed in the meantime count as 0."""
    size_bytes = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes
