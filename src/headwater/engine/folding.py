"""The fold in a process of its own: it is the one heavy task of the server, and here it holds up nobody.

The server writes a line for each piece of work and gets a line back. The worker ends when its input does, so it
never outlives the server, and it holds a lock, so a new server waits for it to be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from headwater.log.model import evolve
from headwater.store import index
from headwater.store.disk import Lock, RealDisk
from headwater.store.embedded import FoldCutOffError, IndexFullError
from headwater.store.fold import fold
from headwater.store.journal import read_segment, segment_name

JOURNAL_DIR = "journal"
INDEX_NAME = "index.db"
FOLD_LOCK = "fold.lock"
LOCK_WAIT_S = 10.0
_SHRINK_PAGES = 1024
_NICE = 10


class FoldWorker:
    """The worker's side: the only writer of the index."""

    def __init__(self, directory: Path) -> None:
        self._disk = RealDisk(directory / JOURNAL_DIR)
        connection = index.connect(directory / INDEX_NAME, write=True)
        self._reader = index.IndexReader(connection)
        self._writer = index.IndexWriter(connection)

    def handle(self, line: str) -> dict[str, Any]:
        work = json.loads(line)
        try:
            if "fold" in work:
                self._fold(work["fold"])
                return {"more": False}
            return {"more": self._reclaim(work["reclaim"])}
        except sqlite3.OperationalError as error:
            self._writer.rollback()
            full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            return {"error": str(error), "full": full}
        except Exception as error:  # noqa: BLE001 - the server decides what it means
            return {"error": f"{type(error).__name__}: {error}", "full": False}

    def close(self) -> None:
        self._reader.close()

    def _fold(self, number: int) -> None:
        file = self._disk.open(segment_name(number))
        try:
            segment = read_segment(file.name, file.read(), number, last=False)
        finally:
            file.close()
        if segment is not None:
            fold(self._reader, self._writer, segment, evolve)
        self._writer.checkpoint()

    def _reclaim(self, chunks_max: int) -> bool:
        more = self._writer.reclaim(chunks_max)
        self._writer.shrink(_SHRINK_PAGES)
        self._writer.checkpoint()
        return more


def main(directory: Path) -> None:
    # The server's signals reach its whole group; only the server decides when to stop, by ending our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with_parent()
    os.nice(_NICE)  # it can wait; requests cannot
    lock = Lock(directory / FOLD_LOCK, wait_s=LOCK_WAIT_S)
    worker = FoldWorker(directory)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(worker.handle(line)) + "\n")
        sys.stdout.flush()
    lock.release()


def _end_with_parent() -> None:
    """Where the kernel offers it, be killed with the server instead of noticing later."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class SubprocessFolder:
    """The server's side: starts the worker when it is first needed and asks one thing at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def fold(self, number: int) -> None:
        await self._ask({"fold": number})

    async def reclaim(self, chunks_max: int) -> bool:
        return bool((await self._ask({"reclaim": chunks_max}))["more"])

    async def _ask(self, work: dict[str, int]) -> dict[str, Any]:
        async with self._turn:
            process = await self._started()
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("the fold worker has no pipes")
            line = b""
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(work).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            if not line:
                self._process = None  # the next to ask starts another
                raise FoldCutOffError(f"its process ended with code {await process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise IndexFullError(answer["error"]) if answer["full"] else RuntimeError(answer["error"])
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headwater.engine.folding",
                str(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process

    async def close(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
