"""The files of a data directory, and its FORMAT file."""

from __future__ import annotations

import errno
from pathlib import Path

from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import DirectoryError, UnknownFormatError

FORMAT = 3
JOURNAL_DIR = "journal"
INDEX_NAME = "index.db"
FORMAT_NAME = "FORMAT"
STANDBY = "standby"  # a folder in a directory that follows a backup, and is no data directory until it is promoted

_TEXT = "headwater data directory, format {}\n"


class DamagedIndexError(DirectoryError):
    """The index is not a database, or SQLite reports damage."""

    def __init__(self, path: Path, cause: Exception) -> None:
        super().__init__(f"{path} is damaged: {cause}; restore the directory from a backup")


class MissingFileError(DirectoryError):
    """A file of a data directory is missing or empty."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is missing or empty; restore the directory from a backup")


class StandbyError(DirectoryError):
    """The directory follows a backup."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} is a standby; promote it with: headwater promote {directory}")


def check_format(directory: Path) -> None:
    """Check that a directory is complete and has the format of this version."""
    if not (directory / FORMAT_NAME).exists():
        if (directory / STANDBY).exists():
            raise StandbyError(directory)
        raise FileNotFoundError(errno.ENOENT, "not a Headwater data directory", str(directory))
    found = (directory / FORMAT_NAME).read_text(errors="replace")
    if found in [_TEXT.format(version) for version in range(1, FORMAT)]:
        raise UnknownFormatError(
            f"{directory} has {found.strip()!r} of an unreleased version; this version supports format {FORMAT}. "
            "Read its streams with that version and write them to a new directory."
        )
    if found != _TEXT.format(FORMAT):
        raise UnknownFormatError(f"{directory} has {found.strip()[:80]!r}; this version supports format {FORMAT}")
    check_complete(directory)


def check_complete(directory: Path) -> None:
    if not (directory / JOURNAL_DIR).is_dir():
        raise MissingFileError(directory / JOURNAL_DIR)
    index = directory / INDEX_NAME
    if not index.is_file() or index.stat().st_size == 0:
        raise MissingFileError(index)


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
