"""The process that starts Spark's Python workers: PySpark's own, with quiet ends of workers.

Spark closes the connections of its idle workers when a session stops. A worker that notices writes an error to the
connection, which fails: over a Unix domain socket at once, and PySpark prints the traceback of that. It says nothing of
a task, because the error of a task is raised in the driver. This module imports no more than PySpark's, because workers
are forks of the process.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeAlias

from pyspark import daemon

Worker: TypeAlias = Callable[[socket.socket, bool], int]


def ending_quietly(worker: Worker) -> Worker:
    def work(connection: socket.socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return work


if __name__ == "__main__":
    daemon.worker = ending_quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
