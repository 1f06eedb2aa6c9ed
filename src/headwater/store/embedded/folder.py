"""The fold in a separate process, so that it does not delay requests.

The server writes one line per task to the worker (`fold_worker.py`) and reads one line back, which names the task. The
worker stops when its input ends, so it does not outlive the server. It holds a lock, so a new server waits until the
old worker has stopped.

The worker may end at any moment: while it is idle, while a task is sent or in progress, or before its answer is read.
Whatever goes wrong between the two processes is reported as a `FoldInterruptedError`, and the next task starts another
worker. A task can be repeated, whether or not the first attempt was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from headwater import limits


class IndexFullError(Exception):
    """There is no disk space for the fold. It can be retried."""


class FoldInterruptedError(Exception):
    """The fold worker was killed or stopped, or its answer is invalid. The task can be repeated."""


class FoldUnavailableError(FoldInterruptedError):
    """The fold worker could not be started: no file descriptor, process or memory is available."""


class Reclaimed(NamedTuple):
    """What one step of reclaiming did."""

    size_bytes: int  # of the removed rows
    garbage: bool  # whether rows of deleted streams are left
    more: bool  # whether another step would do more


class IndexLockedError(FoldInterruptedError):
    """Another program has locked the index."""


class WorkerAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of the worker to one task. A task without an error was committed."""

    task: str  # the task that it answers
    error: str | None = None
    full: bool = False  # the error is a lack of space or descriptors
    locked: bool = False  # the error is a lock of another program
    added_bytes: int = 0  # of rows, by a fold
    reclaimed_bytes: int = 0
    garbage: bool = False
    more: bool = False

    def check(self) -> None:
        if self.locked:
            raise IndexLockedError(f"another program has locked the index; end it: {self.error}")
        if self.error is not None:
            raise IndexFullError(self.error) if self.full else RuntimeError(self.error)

    @property
    def reclaimed(self) -> Reclaimed:
        return Reclaimed(self.reclaimed_bytes, self.garbage, self.more)


class Folder(Protocol):
    async def fold(self, number: int) -> int:
        """Fold a segment into the index. Returns the size of the rows that it added."""

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        """Reclaim some space of deleted streams. If `urgent`, return more of it to the file system."""

    async def close(self) -> None: ...


class SubprocessFolder:
    """Starts the worker when it is first needed, and sends it one task at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def fold(self, number: int) -> int:
        return (await self._ask(f"fold {number}")).added_bytes

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        return (await self._ask("reclaim urgently" if urgent else "reclaim")).reclaimed

    async def _ask(self, task: str) -> WorkerAnswer:
        async with self._turn:
            process = await self._started()
            try:
                async with asyncio.timeout(limits.FOLD_TIMEOUT_S):  # in Python 3.11, wait_for can lose a cancellation
                    answer = _decode(await _exchange(process, task), task)
            except _LostWorkerError as error:
                await self._lose(process, str(error))
            except TimeoutError:
                await self._lose(process, f"it did not answer within {limits.FOLD_TIMEOUT_S:.0f} s")
        answer.check()
        return answer

    async def _lose(self, process: asyncio.subprocess.Process, reason: str) -> NoReturn:
        """End a worker that cannot be used any more, so that the next task starts another one."""
        self._process = None
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        code = await process.wait()
        if process.stdout is not None:  # a pipe that is not read to its end is never closed
            with contextlib.suppress(OSError, RuntimeError):
                await process.stdout.read()
        raise FoldInterruptedError(f"{reason}; its process ended with code {code}")

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
                    start_new_session=True,  # Ctrl-C and signals to the group of the server do not reach it
                )
            except OSError as error:  # no file descriptor, process or memory
                raise FoldUnavailableError(f"its process could not be started: {error}") from error
        return self._process

    async def close(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, RuntimeError):  # the worker has ended
            process.stdin.close()
        try:
            async with asyncio.timeout(limits.FOLD_STOP_S):
                await process.wait()
        except TimeoutError:  # the fold can be retried
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _LostWorkerError(Exception):
    """The worker has ended, or its answer is invalid."""


async def _exchange(process: asyncio.subprocess.Process, task: str) -> bytes:
    """Send a task and wait for the line of the answer."""
    if process.stdin is None or process.stdout is None:
        raise _LostWorkerError("it has no pipes")
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        await process.stdin.drain()
    except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError if it has closed the pipe
        raise _LostWorkerError("the task could not be sent") from error
    try:
        return await process.stdout.readline()
    except TimeoutError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: an endless line
        raise _LostWorkerError("its answer could not be read") from error


def _decode(line: bytes, task: str) -> WorkerAnswer:
    """Decode an answer. It must name the task: another answer would release a segment that is not folded."""
    if not line:
        raise _LostWorkerError("it did not answer")
    try:
        answer = msgspec.json.decode(line, type=WorkerAnswer)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _LostWorkerError(f"its answer {line[:100]!r} is invalid") from error
    if answer.task != task:
        raise _LostWorkerError(f"it answered {answer.task!r} instead of {task!r}")
    return answer
