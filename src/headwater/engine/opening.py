"""Opening a data directory: who owns it, what format it has, and the store over it."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headwater.engine.folding import FOLD_LOCK, INDEX_NAME, JOURNAL_DIR, LOCK_WAIT_S, SubprocessFolder
from headwater.limits import Limits
from headwater.log.model import evolve
from headwater.store import backup, index
from headwater.store.checking import Checker, Report, Salvage, salvage
from headwater.store.disk import Lock, RealDisk
from headwater.store.embedded import EmbeddedStore
from headwater.store.journal import UnknownFormatError
from headwater.store.syncing import best_syncer
from headwater.store.threads import ThreadRunner

FORMAT = "headwater data directory, format 1\n"
_FORMAT_NAME = "FORMAT"
_OWNER_LOCK = "owner.lock"


def open_store(directory: Path, limits: Limits) -> EmbeddedStore:
    """The embedded store of a directory, made if it is not there. One process at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = Lock(directory / _OWNER_LOCK)
    try:
        if not (directory / _FORMAT_NAME).exists():
            _claim(directory)
        check_format(directory)
        Lock(directory / FOLD_LOCK, wait_s=LOCK_WAIT_S).release()  # the worker of a killed server is on its way out
        index.create(directory / INDEX_NAME)
        return EmbeddedStore(
            RealDisk(directory / JOURNAL_DIR),
            lambda: index.connect(directory / INDEX_NAME, write=False),
            evolve,
            limits=limits,
            syncer=best_syncer(),
            helper=ThreadRunner("headwater-spare"),
            folder=SubprocessFolder(directory),
            salt=lambda: secrets.randbits(32),
            readers=ThreadPoolExecutor(2, "headwater-read"),
            release=lock.release,
        )
    except BaseException:
        lock.release()
        raise


def _claim(directory: Path) -> None:
    begun = {_OWNER_LOCK, JOURNAL_DIR, f"{_FORMAT_NAME}.new"}
    if any(path.name not in begun for path in directory.iterdir()):
        raise UnknownFormatError(f"{directory} is not empty and not a Headwater data directory")
    (directory / JOURNAL_DIR).mkdir(exist_ok=True)
    disk = RealDisk(directory)
    file = disk.open(f"{_FORMAT_NAME}.new")
    file.write(0, FORMAT.encode())
    file.sync()
    file.close()
    disk.rename(f"{_FORMAT_NAME}.new", _FORMAT_NAME)
    disk.sync_names()


def check_format(directory: Path) -> None:
    found = (directory / _FORMAT_NAME).read_text(errors="replace")
    if found != FORMAT:
        raise UnknownFormatError(f"{directory} has {found.strip()[:80]!r}; this version knows {FORMAT.strip()!r}")


def check_directory(directory: Path, progress: Callable[[str], None]) -> Report:
    """Verify a directory that no server owns."""
    lock = _own(directory)
    connection = index.connect(directory / INDEX_NAME, write=False)
    try:
        return Checker(RealDisk(directory / JOURNAL_DIR), connection, evolve, progress).run()
    finally:
        connection.close()
        lock.release()


def salvage_directory(directory: Path) -> Salvage:
    """Drop the journal from its first damage on; what is dropped is set aside."""
    lock = _own(directory)
    connection = index.connect(directory / INDEX_NAME, write=False)
    try:
        meta = index.IndexReader(connection).meta()
        disk = RealDisk(directory / JOURNAL_DIR)
        return salvage(disk, meta.folded_segment, meta.folded_sequence, lambda: secrets.randbits(32))
    finally:
        connection.close()
        lock.release()


def back_up(directory: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    """Copy a directory, in use or not, to one that does not exist yet."""
    _check_present(directory)
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(errno.EEXIST, "exists and is not empty", str(target))
    backup.copy_journal(directory / JOURNAL_DIR, target / JOURNAL_DIR)
    folded = backup.copy_index(directory / INDEX_NAME, target / INDEX_NAME, progress)
    backup.finish_journal(target / JOURNAL_DIR, folded, lambda: secrets.randbits(32))
    (target / _FORMAT_NAME).write_text(FORMAT)
    backup.sync_tree(target)


def _own(directory: Path) -> Lock:
    _check_present(directory)
    lock = Lock(directory / _OWNER_LOCK)
    try:
        Lock(directory / FOLD_LOCK, wait_s=LOCK_WAIT_S).release()
    except BaseException:
        lock.release()
        raise
    return lock


def _check_present(directory: Path) -> None:
    if not (directory / _FORMAT_NAME).exists():
        raise FileNotFoundError(errno.ENOENT, "no Headwater data directory", str(directory))
    check_format(directory)
