"""The identity of a data directory: a file with its timeline. A restored directory gets a new timeline.

The folder `backup/` of a data directory also has a folder for each target, with a lock and the linked segments.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headwater.store.embedded import locking
from headwater.store.embedded.backup.failures import BackupError
from headwater.store.embedded.layout import share, write_file

FOLDER = "backup"
_NAME = "identity.json"
_LOCK_NAME = "lock"


class TimelineIdentity(msgspec.Struct, frozen=True):
    id: str
    parent: str = ""  # the timeline that it was restored from


def identity_of(directory: Path) -> TimelineIdentity:
    """The identity of a directory, which is created if it has none."""
    path = directory / FOLDER / _NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=TimelineIdentity)
    except FileNotFoundError:
        return begin_timeline(directory, parent="")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{path} is damaged: {error}. Remove it, and back up to a new target.") from None


def begin_timeline(directory: Path, parent: str) -> TimelineIdentity:
    """Start a new timeline for a restored directory."""
    identity = TimelineIdentity(secrets.token_hex(16), parent)
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    share(folder, directory)
    write_file(folder, _NAME, msgspec.json.encode(identity), directory)
    return identity


def folder_for(directory: Path, url: str) -> Path:
    """The folder in a data directory for backups to a target."""
    where = url if "://" in url else os.path.abspath(url)
    return directory / FOLDER / hashlib.sha256(where.encode()).hexdigest()[:16]


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock out other backups of the same directory to the same target."""
    directory = folder.parent.parent
    for path in (folder.parent, folder):  # `parents=True` would ignore the mode
        path.mkdir(mode=0o700, exist_ok=True)
        share(path, directory)
    try:
        lock = locking.acquire(folder / _LOCK_NAME)
    except locking.DirectoryInUseError as error:
        reason = f"the target is {error.strerror}, which backs up {directory} too"
        raise BackupError(f"{reason}. Stop it or wait for it.") from None
    share(folder / _LOCK_NAME, directory)
    try:
        yield
    finally:
        lock.release()
