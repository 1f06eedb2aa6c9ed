"""Locks on a data directory, released by the system however a process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from headwater import limits

OWNER = "owner.lock"  # the server, or a command that needs the directory to itself
FOLD = "fold.lock"  # the fold worker


class DirectoryInUseError(OSError):
    """Another process owns the data directory."""


class Lock:
    """A locked file. The constructor only assigns; `acquire` makes one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def acquire(path: Path, *, wait_s: float = 0.0) -> Lock:
    """Lock a file, made if it is not there, and write this process's id into it."""
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
    return Lock(descriptor)


def own(directory: Path) -> Lock:
    """Own a directory, once the fold worker of a server that was killed is gone."""
    lock = acquire(directory / OWNER)
    try:
        acquire(directory / FOLD, wait_s=limits.LOCK_WAIT_S).release()
    except BaseException:
        lock.release()
        raise
    return lock
