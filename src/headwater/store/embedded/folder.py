"""The fold in a separate process, so that it does not delay requests.

The server writes one line per task to the worker (`fold_worker.py`) and reads one line back. The worker stops when its
input ends, so it does not outlive the server. It holds a lock, so a new server waits until the old worker has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any, Protocol

from headwater import limits


class IndexFullError(Exception):
    """There is no disk space for the fold. It can be retried."""


class FoldInterruptedError(Exception):
    """The fold worker was killed or stopped. The fold can be retried."""


class FoldUnavailableError(FoldInterruptedError):
    """The fold worker could not be started: no file descriptor, process or memory is available."""


class Folder(Protocol):
    async def fold(self, number: int) -> None:
        """Fold a segment into the index."""

    async def reclaim(self, chunks_max: int, *, urgent: bool) -> None:
        """Reclaim some space of deleted streams. If `urgent`, return more of it to the file system."""

    async def close(self) -> None: ...


class SubprocessFolder:
    """Starts the worker when it is first needed, and sends it one task at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def fold(self, number: int) -> None:
        await self._ask({"fold": number})

    async def reclaim(self, chunks_max: int, *, urgent: bool) -> None:
        await self._ask({"reclaim": chunks_max, "urgent": urgent})

    async def _ask(self, work: dict[str, int]) -> None:
        async with self._turn:
            process = await self._started()
            try:
                async with asyncio.timeout(limits.FOLD_TIMEOUT_S):  # in Python 3.11, wait_for can lose a cancellation
                    line = await _exchange(process, work)
            except TimeoutError:
                process.kill()
                line = b""
            if not line:
                self._process = None  # the next task starts another worker
                raise FoldInterruptedError(f"its process ended with code {await process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise IndexFullError(answer["error"]) if answer["full"] else RuntimeError(answer["error"])

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # do not import from the current directory
                    "-m",
                    "headwater.store.embedded.fold_worker",
                    str(self._directory),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            except OSError as error:  # no file descriptor, process or memory
                raise FoldUnavailableError(f"its process could not be started: {error}") from error
        return self._process

    async def close(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(limits.FOLD_STOP_S):
                await process.wait()
        except TimeoutError:  # the fold can be retried
            process.kill()
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, work: dict[str, int]) -> bytes:
    """Send a task and wait for the response line; empty if the worker has stopped."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the fold worker has no pipes")
    with contextlib.suppress(ConnectionError):
        process.stdin.write(json.dumps(work).encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()
    return b""
