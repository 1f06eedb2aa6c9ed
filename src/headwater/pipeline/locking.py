"""The lock on a checkpoint, for one run of a job at a time. The system releases it when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from headwater import limits
from headwater.errors import JobConflictError

LOCK_FILE = ".run.lock"


class JobLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock. Calling it again has no effect."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def lock_checkpoint(directory: Path) -> JobLock:
    """Lock a checkpoint; create it if it does not exist. Waits briefly for a run that has just ended."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline_s = time.monotonic() + limits.PIPELINE_LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(0.01)
                continue
            os.close(descriptor)
            raise JobConflictError(
                f"another job, or another run of this one, uses the checkpoint {directory}"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return JobLock(descriptor)
