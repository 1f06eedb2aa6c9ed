"""Memory that was freed: kept for the next allocation, or returned to the kernel. Both are for glibc.

Allocations of megabytes are returned to the kernel when they are freed, unless glibc is told otherwise, and the next
one faults its pages in again. That took a quarter of the time of a fold, and is more than the cost of a read.
"""

from __future__ import annotations

import contextlib
import ctypes

_ARENAS, _TRIM, _MMAP = -8, -1, -3  # parameters of mallopt


def keep_freed_memory(kept_bytes: int, piece_bytes: int, *, arenas: int | None = 1) -> None:
    """Keep up to `kept_bytes` of freed memory, in one arena for all threads. Larger pieces are returned at once.

    glibc before 2.35 refuses a piece of more than 32 MiB, and without one it would return all that are larger than
    128 KiB from then on. So the half of it is tried, and so on.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        if arenas is not None:
            mallopt(_ARENAS, arenas)
        mallopt(_TRIM, kept_bytes)
        while piece_bytes and not mallopt(_MMAP, piece_bytes):
            piece_bytes //= 2


def return_freed_memory() -> None:
    """Return freed memory to the kernel. It may be scattered over the heap."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
