"""The fold in a separate process, so that it does not delay requests.

The server writes one line per task to the worker (`fold_worker.py`) and reads one line back, which names the task. The
worker stops when its input ends, so it does not outlive the server. It holds a lock, so a new server waits until the
old worker has stopped.

Whatever goes wrong between the two processes (`worker_process.py`) is reported as a `FoldInterruptedError`, and the
next task starts another worker. A task can be repeated, whether or not the first attempt was committed.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from headwater import limits
from headwater.worker_process import WorkerLostError, WorkerProcess, WorkerUnavailableError


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
        self._worker = WorkerProcess(
            "headwater.store.embedded.fold_worker",
            str(directory),
            stop_s=limits.FOLD_STOP_S,
        )

    async def fold(self, number: int) -> int:
        return (await self._ask(f"fold {number}")).added_bytes

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        return (await self._ask("reclaim urgently" if urgent else "reclaim")).reclaimed

    async def _ask(self, task: str) -> WorkerAnswer:
        async def take(output: asyncio.StreamReader) -> WorkerAnswer:
            return _decode(await output.readline(), task)

        try:
            answer = await self._worker.ask(json.dumps(task).encode() + b"\n", take, limits.FOLD_TIMEOUT_S)
        except WorkerUnavailableError as error:
            raise FoldUnavailableError(str(error)) from error
        except WorkerLostError as error:
            raise FoldInterruptedError(str(error)) from error
        answer.check()
        return answer

    async def close(self) -> None:
        await self._worker.close()


def _decode(line: bytes, task: str) -> WorkerAnswer:
    """Decode an answer. It must name the task: another answer would release a segment that is not folded."""
    if not line:
        raise WorkerLostError("it did not answer")
    try:
        answer = msgspec.json.decode(line, type=WorkerAnswer)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WorkerLostError(f"its answer {line[:100]!r} is invalid") from error
    if answer.task != task:
        raise WorkerLostError(f"it answered {answer.task!r} instead of {task!r}")
    return answer
