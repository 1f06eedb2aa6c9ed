"""A worker: a separate process that does one task at a time for the server, so that the task does not delay requests.

The server writes a task to the worker's input and reads the answer from its output. The worker stops when its input
ends, so it does not outlive the server, and it ignores the signals that a supervisor sends to every process of a
service (`become_worker`).

It is in a process group of its own, so that Ctrl-C does not reach it, but in the session of the server: Linux divides
the processors equally among sessions (autogroup) before it looks at priorities.

The worker may end at any moment: while it is idle, while a task is sent or in progress, or before its answer is read.
Whatever goes wrong between the two processes is a `WorkerLostError`, and the next task starts another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


class WorkerLostError(Exception):
    """The worker has ended, did not answer, or its answer is invalid."""


class WorkerUnavailableError(WorkerLostError):
    """The worker could not be started: no file descriptor, process or memory is available."""


class WorkerProcess:
    """Starts the process of a module when it is first needed, and gives it one task at a time."""

    def __init__(self, module: str, *arguments: str, stop_s: float) -> None:
        self._command = ("-m", module, *arguments)
        self._stop_s = stop_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, task: bytes, take: Callable[[asyncio.StreamReader], Awaitable[T]], timeout_s: float) -> T:
        """Send a task and take its answer. `take` raises a WorkerLostError if the answer is invalid."""
        async with self._turn:
            process = await self._started()
            try:
                async with asyncio.timeout(timeout_s):  # in Python 3.11, wait_for can lose a cancellation
                    return await exchange(process, task, take)
            except WorkerLostError as error:
                await self._lose(process, str(error))
            except TimeoutError:
                await self._lose(process, f"it did not answer within {timeout_s:.0f} s")

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # do not import from the current directory
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    **_own_group(),
                )
            except OSError as error:  # no file descriptor, process or memory
                raise WorkerUnavailableError(f"its process could not be started: {error}") from error
        return self._process

    async def _lose(self, process: asyncio.subprocess.Process, reason: str) -> NoReturn:
        """End a worker that cannot be used any more, so that the next task starts another one."""
        self._process = None
        code = await _killed(process)
        if process.stdout is not None:  # a pipe that is not read to its end is never closed
            with contextlib.suppress(OSError, RuntimeError):
                await process.stdout.read()
        raise WorkerLostError(f"{reason}; its process ended with code {code}")

    async def kill(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            await _killed(process)

    async def close(self) -> None:
        """Let the process finish its task and end."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, RuntimeError):  # the worker has ended
            process.stdin.close()
        try:
            async with asyncio.timeout(self._stop_s):
                await process.wait()
        except TimeoutError:  # the task can be repeated
            await _killed(process)


def _own_group() -> dict[str, Any]:
    """How to start a process in a group of its own."""
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        return {"process_group": 0}
    return {"preexec_fn": os.setpgrp}  # uvloop does not know the other; it is one system call


async def _killed(process: asyncio.subprocess.Process) -> int:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        process.kill()
    return await process.wait()


async def exchange(
    process: asyncio.subprocess.Process, task: bytes, take: Callable[[asyncio.StreamReader], Awaitable[T]]
) -> T:
    """Send a task and take its answer."""
    if process.stdin is None or process.stdout is None:
        raise WorkerLostError("it has no pipes")
    try:
        process.stdin.write(task)
        await process.stdin.drain()
    except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError if it has closed the pipe
        raise WorkerLostError("the task could not be sent") from error
    try:
        return await take(process.stdout)
    except TimeoutError:
        raise
    # ValueError: an endless line. EOFError: less than was announced.
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise WorkerLostError("its answer could not be read") from error


def become_worker(nice: int) -> None:
    """Called in the process of a worker when it starts."""
    # Some supervisors send their signals to every process of a service. The worker stops when its input ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # be killed together with the server
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(nice)  # requests have priority


def run_in_idle_time() -> None:
    """Leave the processors to every other process at once. A low priority alone keeps one for some milliseconds."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # of a sandbox; the priority is low all the same
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
