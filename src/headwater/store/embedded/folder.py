"""The fold in a process of its own: it is the one heavy task of the server, and there it delays no request.

The server writes a line for each piece of work and gets a line back. The worker (`fold_worker.py`) ends when its
input does, so it never outlives the server, and it holds a lock, so a new server waits for it to be gone.
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
    """The fold found no room on the disk; it can be tried again."""


class FoldInterruptedError(Exception):
    """The fold worker was ended from outside. A fold can always run again."""


class FoldUnavailableError(FoldInterruptedError):
    """There is no descriptor, process or memory for the fold worker at present."""


class Folder(Protocol):
    async def fold(self, number: int) -> None:
        """Fold a segment into the index."""

    async def reclaim(self, chunks_max: int, *, urgent: bool) -> None:
        """Reclaim some of what deleted streams left; when it is urgent, return more of it to the file system."""

    async def close(self) -> None: ...


class SubprocessFolder:
    """Starts the worker when it is first needed and asks one thing at a time."""

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
                async with asyncio.timeout(limits.FOLD_TIMEOUT_S):  # wait_for of Python 3.11 can lose a cancellation
                    line = await _exchange(process, work)
            except TimeoutError:
                process.kill()
                line = b""
            if not line:
                self._process = None  # the next to ask starts another
                raise FoldInterruptedError(f"its process ended with code {await process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise IndexFullError(answer["error"]) if answer["full"] else RuntimeError(answer["error"])

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # nothing is imported from the directory the server was started in
                    "-m",
                    "headwater.store.embedded.fold_worker",
                    str(self._directory),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            except OSError as error:  # no descriptor, process or memory for it at present
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
        except TimeoutError:  # a fold can always run again
            process.kill()
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, work: dict[str, int]) -> bytes:
    """Hand a piece of work over and wait for the answer; nothing if the worker has ended."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the fold worker has no pipes")
    with contextlib.suppress(ConnectionError):
        process.stdin.write(json.dumps(work).encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()
    return b""
