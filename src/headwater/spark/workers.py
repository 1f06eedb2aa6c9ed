"""What makes a Python worker of Spark fit for large batches.

Spark collects garbage after every task, which took a sixth of a task's time, nearly all of it to look at modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys

from headwater import limits

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@functools.cache
def freeze_imports() -> None:
    """Once in a worker, when all that tasks need was imported: leave it out of garbage collections."""
    gc.collect()
    gc.freeze()


@functools.cache
def keep_memory() -> None:
    """Once in a worker: do not give freed memory back.

    Every answer is a few allocations of megabytes. The allocator gives each back to the kernel and faults it in again,
    which took a third of a task's time.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without it
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_TRIM_THRESHOLD, limits.SPARK_FREE_BYTES_KEPT)
            libc.mallopt(_M_MMAP_THRESHOLD, limits.SPARK_FREE_BYTES_KEPT)
