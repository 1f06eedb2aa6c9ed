"""The file operations that the journal needs, as an interface that a simulated disk can implement."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

_RESERVE = "reserve"  # the name of its file


class File(Protocol):
    name: str

    def write(self, position: int, data: bytes) -> None:
        """Write all data at a position. If this raises OSError, any part of it may be written."""

    def sync(self) -> None:
        """Make all written data durable. If this raises, any part of it may be lost."""

    def read(self) -> bytes: ...

    def allocate(self, size: int) -> None:
        """Allocate blocks for this many bytes, or raise OSError without writing."""

    def truncate(self, size: int) -> None: ...

    def extend(self, size: int) -> int:
        """Extend a shorter file with zeros to this length, without blocks. Returns the length."""

    def close(self) -> None: ...


class Disk(Protocol):
    def names(self) -> list[str]: ...

    def open(self, name: str) -> File:
        """Open a file. It is created if it does not exist."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError if it does not exist."""

    def is_shared(self, name: str) -> bool:
        """Whether a file has another hard link, from a backup, so that it must not be overwritten."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Make renames, removals and new files durable."""


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


class RealFile:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = str(path)
        self.descriptor = descriptor

    def write(self, position: int, data: bytes) -> None:
        written = os.pwrite(self.descriptor, data, position)
        while written < len(data):
            more = os.pwrite(self.descriptor, memoryview(data)[written:], position + written)
            if more == 0:
                raise OSError(errno.EIO, "the disk accepted no more bytes", self.name)
            written += more

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def read(self) -> bytes:
        return Path(self.name).read_bytes()

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self.descriptor, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def extend(self, size: int) -> int:
        length = os.fstat(self.descriptor).st_size
        if length < size:
            os.ftruncate(self.descriptor, size)
        return max(length, size)

    def close(self) -> None:
        os.close(self.descriptor)


class RealDisk:
    """Files directly below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return sorted(os.listdir(self._directory))

    def open(self, name: str) -> RealFile:
        path = self._directory / name
        return RealFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def is_shared(self, name: str) -> bool:
        return (self._directory / name).stat().st_nlink > 1

    def rename(self, old: str, new: str) -> None:
        os.rename(self._directory / old, self._directory / new)

    def remove(self, name: str) -> None:
        os.remove(self._directory / name)

    def sync_names(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Reserve:
    """Disk space that is released when the disk is full, so that streams can be deleted.

    Deleting streams needs space in the journal, and folding needs space in the index before it frees any. The reserve
    is a file with allocated blocks. It is removed when the disk is full, and allocated again before other writes are
    accepted.
    """

    def __init__(self, disk: Disk, size_bytes: int) -> None:
        self._disk = disk
        self._size_bytes = size_bytes

    def take(self) -> None:
        """Allocate the reserve, or raise OSError and allocate nothing."""
        file = self._disk.open(_RESERVE)
        try:
            file.allocate(self._size_bytes)
        except OSError:
            file.truncate(0)
            raise
        finally:
            file.close()

    def release(self) -> None:
        if _RESERVE in self._disk.names():
            self._disk.remove(_RESERVE)
