"""What makes a Python worker of Spark fit for large batches."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 256 * 1024 * 1024


@functools.cache
def tune() -> None:
    """Once in a worker: keep freed memory, and leave what was imported out of garbage collections.

    Every answer is a few allocations of megabytes. The allocator gives each back to the kernel and faults it in again,
    which took a third of a task's time; and Spark collects garbage after every task, which took a sixth of it, nearly
    all of it to look at modules.
    """
    gc.freeze()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without it
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
