"""The fold worker: the only writer of the index, started by `folder.SubprocessFolder`."""

from __future__ import annotations

import json
import os
import select
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headwater import limits
from headwater.freed_memory import keep_freed_memory, return_freed_memory
from headwater.store.embedded import index, locking
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.fold import fold
from headwater.store.embedded.folder import WorkerAnswer
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import read_file, read_segment, segment_name
from headwater.store.embedded.journal_writer import PASSING
from headwater.store.embedded.layout import INDEX_NAME, JOURNAL_DIR, is_locked
from headwater.store.embedded.reclaiming import Reclaimer
from headwater.worker_process import become_worker

# Without space, SQLite may also fail to open or extend the files beside the index.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE)


class FoldWorker:
    def __init__(
        self, disk: Disk, connection: sqlite3.Connection, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._disk = disk
        self._reader = index.IndexReader(connection)
        self._writer = IndexWriter(connection)
        self._reclaimer = Reclaimer(connection, clock_s)

    def handle(self, task: str) -> WorkerAnswer:
        try:
            work, _, number = task.partition(" ")
            return self._fold(task, int(number)) if work == "fold" else self._reclaim(task, urgent=bool(number))
        except sqlite3.OperationalError as error:
            self._writer.rollback()
            return WorkerAnswer(task, str(error), full=error.sqlite_errorcode in _FULL, locked=is_locked(error))
        except OSError as error:
            return WorkerAnswer(task, str(error), full=error.errno in PASSING)
        except MemoryError:  # the worker ends, which frees its memory, and the server starts another
            raise
        except Exception as error:  # noqa: BLE001 - reported to the server
            return WorkerAnswer(task, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        self._reader.close()

    def _fold(self, task: str, number: int) -> WorkerAnswer:
        name, data = read_file(self._disk, segment_name(number))
        segment = read_segment(name, data, number, last=False)
        added_bytes = fold(self._reader, self._writer, segment)
        self._writer.checkpoint(log_pages_max=limits.WAL_PAGES_MAX)
        return WorkerAnswer(task, added_bytes=added_bytes)

    def _reclaim(self, task: str, *, urgent: bool) -> WorkerAnswer:
        log_pages_max = 0 if urgent else limits.WAL_PAGES_MAX
        if self._writer.checkpoint(log_pages_max) > limits.WAL_PAGES_MAX:
            return WorkerAnswer(task)  # a backup reads the index: each step would make the write-ahead log longer
        # The engine's time of the last folded batch, not the clock: no later command has an earlier time.
        before_ms = self._reader.meta().latest.at_ms - limits.PRODUCER_IDLE_S * 1000
        self._writer.expire_producers(before_ms, limits.PRODUCERS_EXPIRED_EVERY)
        size_bytes, garbage, more = self._reclaimer.step(urgent=urgent)
        self._writer.checkpoint(log_pages_max)
        return WorkerAnswer(task, reclaimed_bytes=size_bytes, garbage=garbage, more=more)


def open_worker(directory: Path) -> FoldWorker:
    connection = index.connect(directory / INDEX_NAME, write=True)
    return FoldWorker(RealDisk(directory / JOURNAL_DIR), connection)


def _tasks() -> Iterator[str]:
    """The tasks of the server, which sends one at a time. While there is none, the worker takes little memory."""
    while True:
        if not select.select([sys.stdin], [], [], limits.FOLD_IDLE_S)[0]:
            return_freed_memory()
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def main(directory: Path) -> None:
    become_worker(limits.FOLD_NICE)
    keep_freed_memory(limits.FOLD_FREE_BYTES_KEPT, limits.FOLD_FREE_BYTES_KEPT)
    lock = locking.acquire(directory / locking.FOLD, wait_s=limits.LOCK_WAIT_S)
    worker = open_worker(directory)
    for line in _tasks():
        answer = msgspec.json.encode(worker.handle(json.loads(line))) + b"\n"
        try:
            os.write(sys.stdout.fileno(), answer)
        except BrokenPipeError:  # the server was killed
            break
    lock.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
