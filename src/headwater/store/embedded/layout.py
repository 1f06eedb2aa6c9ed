"""The files of a data directory, its FORMAT file, and who owns them.

Commands that root runs leave files that the user of the server can open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import DamagedDataError
from headwater.store.embedded import index, locking, newest
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import DirectoryError, UnknownFormatError

FORMAT = 4
JOURNAL_DIR = "journal"
INDEX_NAME = "index.db"
FORMAT_NAME = "FORMAT"
RESTORING = "restoring"  # a folder in a directory that is being restored, and is no data directory until the end
COPYING = "copying"  # a file in a directory that is being made as a copy, with what it is a copy of
STANDBY = "standby"  # a folder in a directory that follows a backup, and is no data directory until it is promoted

_TEXT = "headwater data directory, format {}\n"


class DamagedIndexError(DirectoryError):
    """The index is not a database, or SQLite reports damage."""

    def __init__(self, path: Path, cause: Exception) -> None:
        super().__init__(f"{path} is damaged: {cause}; restore the directory from a backup")


class LockedIndexError(DirectoryError):
    """Another program writes to the index."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is locked by another program, which is not Headwater; end it and try again")


class UnreadableIndexError(DirectoryError):
    """The system refused to read the index, which may be intact."""

    def __init__(self, path: Path, cause: Exception) -> None:
        super().__init__(f"{path} could not be read: {cause}; check its permissions, the disk and the system's log")


class MissingFileError(DirectoryError):
    """A file of a data directory is missing or empty."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is missing or empty; restore the directory from a backup")


class StandbyError(DirectoryError):
    """The directory follows a backup."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} is a standby; promote it with: headwater promote {directory}")


class UnfinishedCopyError(DirectoryError):
    """A copy to the directory was interrupted, or is still running."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} is a copy that was not finished; run headwater copy again")


class UnfinishedRestoreError(DirectoryError):
    """A restore to the directory was interrupted, or is still running."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"{directory} is the result of a restore that was not finished. If no restore is running: "
            "remove it, and run headwater restore again"
        )


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # ERROR: a table is missing
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another program held a lock for longer than SQLite waits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED


@contextlib.contextmanager
def index_errors(directory: Path) -> Iterator[None]:
    """Report errors of the index as what they are: damage, a lock of another program, or an error of the system."""
    path = directory / INDEX_NAME
    try:
        yield
    except DamagedDataError as error:
        raise DamagedIndexError(path, error) from error
    except sqlite3.DatabaseError as error:
        if is_locked(error):
            raise LockedIndexError(path) from error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ:
            raise DamagedIndexError(path, error) from error
        raise UnreadableIndexError(path, error) from error


def check_finished(directory: Path) -> None:
    """Check that a directory is not one that is still being made of a backup."""
    if not (directory / FORMAT_NAME).exists():
        if (directory / STANDBY).exists():
            raise StandbyError(directory)
        if (directory / COPYING).exists():
            raise UnfinishedCopyError(directory)
        if (directory / RESTORING).exists():
            raise UnfinishedRestoreError(directory)


def check_format(directory: Path) -> None:
    """Check that a directory is complete and has the format of this version."""
    check_finished(directory)
    if not _has_format(directory):
        check_unused(directory)
        raise FileNotFoundError(errno.ENOENT, "not a Headwater data directory", str(directory))
    text = (directory / FORMAT_NAME).read_text(errors="replace")
    if text in [_TEXT.format(version) for version in range(1, FORMAT)]:
        raise UnknownFormatError(
            f"{directory} has {text.strip()!r} of an unreleased version; this version supports format {FORMAT}. "
            "Read its streams with that version and write them to a new directory."
        )
    if text != _TEXT.format(FORMAT):
        raise UnknownFormatError(f"{directory} has {text.strip()[:80]!r}; this version supports format {FORMAT}")
    check_complete(directory)


def _has_format(directory: Path) -> bool:
    path = directory / FORMAT_NAME
    return path.exists() and path.stat().st_size > 0


def check_unused(directory: Path) -> None:
    """Check that a directory without FORMAT was never complete: then its creation was interrupted. Raises
    MissingFileError if it has data, so FORMAT was lost."""
    journal, path = directory / JOURNAL_DIR, directory / INDEX_NAME
    record = {newest.NAME, f"{newest.NAME}.unfinished"}
    if journal.is_dir() and set(os.listdir(journal)) - record:
        raise MissingFileError(directory / FORMAT_NAME)
    if path.is_file() and path.stat().st_size > 0 and _has_rows(path):
        raise MissingFileError(directory / FORMAT_NAME)


def _has_rows(path: Path) -> bool:
    """Whether an index was used. One that cannot be read may have been."""
    try:
        with contextlib.closing(index.connect(path, write=False)) as connection:
            return index.IndexReader(connection).meta() != index.Meta()
    except (sqlite3.DatabaseError, DamagedDataError) as error:
        return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_ERROR  # its tables were not created yet


def check_complete(directory: Path) -> None:
    if not (directory / JOURNAL_DIR).is_dir():
        raise MissingFileError(directory / JOURNAL_DIR)
    path = directory / INDEX_NAME
    if not path.is_file() or path.stat().st_size == 0:
        raise MissingFileError(path)


def write_format(directory: Path) -> None:
    """Write the FORMAT file. It is written last, because it marks the directory as complete."""
    disk = RealDisk(directory)
    file = disk.open(f"{FORMAT_NAME}.new")
    try:
        file.truncate(0)
        file.write(0, _TEXT.format(FORMAT).encode())
        file.sync()
    finally:
        file.close()
    disk.rename(f"{FORMAT_NAME}.new", FORMAT_NAME)
    disk.sync_names()


@contextlib.contextmanager
def owned_index(directory: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    """The index of a directory that no server uses, which is locked meanwhile."""
    check_format(directory)
    lock = locking.own(directory)
    try:
        with index_errors(directory), contextlib.closing(index.connect(directory / INDEX_NAME, write=write)) as opened:
            yield opened
    finally:
        lock.release()


def write_file(folder: Path, name: str, data: bytes, directory: Path) -> None:
    """Write a small file below a data directory: after a crash it has the old or the new content."""
    disk = RealDisk(folder)
    file = disk.open(f"{name}.new")
    try:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    finally:
        file.close()
    share(folder / f"{name}.new", directory)
    disk.rename(f"{name}.new", name)
    disk.sync_names()


def share(path: Path, directory: Path) -> None:
    """Give a file that root has made to the owner of the data directory that it is in."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def hand_over(directory: Path, user: int, group: int) -> None:
    """Give a directory and everything in it to a user."""
    for folder, folders, names in os.walk(directory):
        for name in (*folders, *names):
            os.chown(Path(folder) / name, user, group, follow_symlinks=False)
    os.chown(directory, user, group)
