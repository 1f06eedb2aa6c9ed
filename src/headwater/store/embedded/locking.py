"""Locks on a data directory. The system releases them when the process exits or is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from headwater import limits

OWNER = "owner.lock"  # held by the server, or by a command that needs exclusive access
FOLD = "fold.lock"  # held by the fold worker


class DirectoryInUseError(OSError):
    """Another process owns the data directory."""


class DirectoryLock:
    """A locked file. Use `acquire` to create one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def acquire(path: Path, *, wait_s: float = 0.0) -> DirectoryLock:
    """Lock a file, which is created if it does not exist, and write the process id into it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                os.close(descriptor)
                reason = f"in use by process {holder or 'unknown'}"
                raise DirectoryInUseError(errno.EBUSY, reason, str(path.parent)) from None
            time.sleep(0.01)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return DirectoryLock(descriptor)


def own(directory: Path) -> DirectoryLock:
    """Lock a directory. Waits until the fold worker of a killed server has stopped."""
    lock = acquire(directory / OWNER)
    try:
        acquire(directory / FOLD, wait_s=limits.LOCK_WAIT_S).release()
    except BaseException:
        lock.release()
        raise
    return lock
