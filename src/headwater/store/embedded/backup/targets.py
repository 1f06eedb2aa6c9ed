"""Targets of backups: directories. S3 buckets are in `s3.py`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from headwater import limits
from headwater.store.embedded import locking
from headwater.store.embedded.backup.failures import BackupError, MissingError, TargetError
from headwater.store.embedded.backup.formats import FORMAT, FORMAT_NAME, check_format
from headwater.store.embedded.backup.timed import TimedTarget

_LOCK_NAME = "lock"


class BackupTarget(Protocol):
    """Named files. A file is written atomically and is durable when `put` returns."""

    url: str

    def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        """The sorted names that begin with a prefix and are greater than `after`, and their sizes. The prefix ends with
        a slash."""

    def is_empty(self) -> bool: ...

    def get(self, name: str) -> bytes:
        """Read a file. Raises MissingError if it does not exist."""

    def put(self, name: str, data: bytes) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file. False if it exists: of several that create it at the same time, one succeeds."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Files that do not exist are ignored."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Lock out other backups, if the target supports locks."""


class DirectoryTarget:
    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

    def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        with self._failures():
            sizes = {}
            for folder, _, names in os.walk(self._root / prefix, onerror=_raise_unless_missing):
                for name in names:
                    path = Path(folder) / name
                    relative = path.relative_to(self._root).as_posix()
                    if not name.endswith(".new") and relative > after:
                        with contextlib.suppress(FileNotFoundError):
                            sizes[relative] = path.stat().st_size
            return dict(sorted(sizes.items()))

    def is_empty(self) -> bool:
        with self._failures():
            return not self._root.exists() or all(map(_is_of_a_beginning, self._root.iterdir()))

    def get(self, name: str) -> bytes:
        with self._failures():
            try:
                return (self._root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise MissingError(self.url, name) from None

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        fresh = path.with_name(f"{path.name}.{threading.get_ident()}.new")
        with self._failures():
            if name != FORMAT_NAME:
                self._check_mounted()
            self._make_folder(path.parent)
            try:
                _write(fresh, data, os.O_TRUNC)
                os.rename(fresh, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
                raise
            _sync_folder(path.parent)

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        with self._failures():
            self._check_mounted()
            self._make_folder(path.parent)
            fresh = path.with_name(f"{path.name}.{threading.get_ident()}.new")
            _write(fresh, data, os.O_TRUNC)
            try:
                os.link(fresh, path)
            except FileExistsError:
                return False
            except OSError:  # the file system has no links; then the content appears after the name
                try:
                    _write(path, data, os.O_EXCL)
                except FileExistsError:
                    return False
            finally:
                os.unlink(fresh)
            _sync_folder(path.parent)
        return True

    def _check_mounted(self) -> None:
        if not (self._root / FORMAT_NAME).exists():
            raise TargetError(self.url, f"{FORMAT_NAME} is missing, so the target may not be mounted")

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)

    def remove(self, names: Iterable[str]) -> None:
        with self._failures():
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._root / name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        check_fit(self)  # before anything in it is changed
        with self._failures():
            self._make_folder(self._root)
            try:
                lock = locking.acquire(self._root / _LOCK_NAME)
            except locking.DirectoryInUseError as error:
                raise BackupError(f"{self.url} is {error.strerror}, another backup. Stop it or wait for it.") from None
            for left in self._root.rglob("*.new"):  # left by a backup that was killed
                left.unlink(missing_ok=True)
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = f" ({error.filename})" if error.filename else ""
            raise TargetError(self.url, f"{error.strerror or error}{name}") from error


def _is_of_a_beginning(path: Path) -> bool:
    """Whether a file was left by a backup that was killed before it claimed the directory."""
    return path.name == _LOCK_NAME or (path.name.startswith(f"{FORMAT_NAME}.") and path.name.endswith(".new"))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _write(path: Path, data: bytes, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_target(where: str, limit_s: float = limits.BACKUP_TARGET_S) -> BackupTarget:
    """Open the target of a path or an S3 URL. An operation that takes longer than the limit fails."""
    if where.startswith("s3://"):
        from headwater.store.embedded.backup.s3 import open_bucket

        return TimedTarget(open_bucket(where), limit_s)
    if "://" in where:
        raise BackupError(
            f"{urlsplit(where).scheme}: is not supported. Use a directory or a URL as s3://bucket/prefix."
        )
    return TimedTarget(DirectoryTarget(Path(where)), limit_s)


def claim(target: BackupTarget) -> None:
    """Claim an empty target for backups; refuse a target with other files."""
    if not check_fit(target):
        target.put(FORMAT_NAME, FORMAT)


def check_fit(target: BackupTarget) -> bool:
    """Whether a target is claimed for backups. An unclaimed target must be empty."""
    try:
        check_format(target.get(FORMAT_NAME), target.url)
    except MissingError:
        if not target.is_empty():
            raise BackupError(f"{target.url} is not empty and has no backup. Use another target.") from None
        return False
    return True


def check_claimed(target: BackupTarget) -> None:
    try:
        check_format(target.get(FORMAT_NAME), target.url)
    except MissingError:
        raise BackupError(f"{target.url} has no backup. Use the target of: headwater backup") from None
