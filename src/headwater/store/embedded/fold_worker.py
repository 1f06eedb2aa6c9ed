"""The fold worker: the only writer of the index, started by `folder.SubprocessFolder`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater import limits
from headwater.store.embedded import index, locking
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.fold import fold
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import read_file, read_segment, segment_name
from headwater.store.embedded.journal_writer import PASSING
from headwater.store.embedded.layout import INDEX_NAME, JOURNAL_DIR

_PR_SET_PDEATHSIG = 1


class FoldWorker:
    def __init__(self, disk: Disk, connection: sqlite3.Connection, now_s: Callable[[], float]) -> None:
        self._disk = disk
        self._reader = index.IndexReader(connection)
        self._writer = IndexWriter(connection)
        self._now_s = now_s

    def handle(self, line: str) -> dict[str, Any]:
        work = json.loads(line)
        try:
            if "fold" in work:
                self._fold(work["fold"])
            else:
                self._reclaim(work["reclaim"], urgent=work["urgent"])
            return {}
        except sqlite3.OperationalError as error:
            self._writer.rollback()
            full = error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
            return {"error": str(error), "full": full}
        except OSError as error:
            return {"error": str(error), "full": error.errno in PASSING}
        except Exception as error:  # noqa: BLE001 - reported to the server
            return {"error": f"{type(error).__name__}: {error}", "full": False}

    def close(self) -> None:
        self._reader.close()

    def _fold(self, number: int) -> None:
        name, data = read_file(self._disk, segment_name(number))
        segment = read_segment(name, data, number, last=False)
        if segment is not None:
            fold(self._reader, self._writer, segment)
        self._writer.checkpoint(log_pages_max=limits.WAL_PAGES_MAX)

    def _reclaim(self, chunks_max: int, *, urgent: bool) -> None:
        self._writer.reclaim(chunks_max)
        idle_ms = int((self._now_s() - limits.PRODUCER_IDLE_S) * 1000)
        self._writer.expire_producers(idle_ms, limits.PRODUCERS_EXPIRED_EVERY)
        self._writer.shrink(limits.RECLAIM_URGENT_PAGES if urgent else limits.RECLAIM_PAGES)
        self._writer.checkpoint(log_pages_max=0 if urgent else limits.WAL_PAGES_MAX)


def open_worker(directory: Path, now_s: Callable[[], float] = time.time) -> FoldWorker:
    connection = index.connect(directory / INDEX_NAME, write=True)
    return FoldWorker(RealDisk(directory / JOURNAL_DIR), connection, now_s)


def main(directory: Path) -> None:
    # Signals to the server reach its whole process group. The worker ignores them and stops when its input ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # be killed together with the server
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(limits.FOLD_NICE)  # requests have priority
    lock = locking.acquire(directory / locking.FOLD, wait_s=limits.LOCK_WAIT_S)
    worker = open_worker(directory)
    for line in sys.stdin:
        answer = json.dumps(worker.handle(line)) + "\n"
        try:
            os.write(sys.stdout.fileno(), answer.encode())
        except BrokenPipeError:  # the server was killed
            break
    lock.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
