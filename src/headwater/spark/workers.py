"""Tunes the Python workers of Spark for large batches, and lets them end without noise.

Spark runs the garbage collector after every task, which took a sixth of a task's time, mostly to scan modules.
"""

from __future__ import annotations

import functools
import gc
import socket
import sys
from typing import Any

from headwater import limits
from headwater.freed_memory import keep_freed_memory


@functools.cache
def end_quietly() -> None:
    """Let an idle worker end without a traceback when Spark closes its connection. Runs once per worker.

    Spark does that when a session stops. The worker then writes an error to the connection, which fails at once over a
    Unix domain socket, and PySpark prints that. It says nothing of a task: the error of a task is raised in the driver.
    """
    daemon: Any = sys.modules["__main__"]  # a worker is a fork of it
    if getattr(getattr(daemon, "__spec__", None), "name", None) != "pyspark.daemon":
        return
    pysparks_own = daemon.worker

    def work(connection: socket.socket, authenticated: bool) -> int:
        try:
            return int(pysparks_own(connection, authenticated))
        except (BrokenPipeError, ConnectionResetError):
            return 1

    daemon.worker = work


@functools.cache
def freeze_imports() -> None:
    """Exclude the imported modules from garbage collection. Runs once per worker, after all imports."""
    gc.collect()
    gc.freeze()


@functools.cache
def keep_memory() -> None:
    """Keep freed memory instead of returning it to the kernel. Runs once per worker.

    Every response needs a few allocations of megabytes. By default the allocator returns each to the kernel and faults
    it in again, which took a third of a task's time.
    """
    keep_freed_memory(limits.SPARK_FREE_BYTES_KEPT, limits.SPARK_FREE_BYTES_KEPT, arenas=None)
