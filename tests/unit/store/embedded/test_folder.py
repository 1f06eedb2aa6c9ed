"""The folder and its worker: the worker can end at any moment, and a task that waits for it can be cancelled."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headwater import worker_process
from headwater.store.embedded import folder
from headwater.store.embedded.folder import WorkerAnswer
from tests.waiting import LIMIT_S


def test_a_cancellation_is_not_lost_if_the_response_arrives_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the background work of a stopping server would continue, and the server would wait for it forever."""

    async def run() -> None:
        answer: asyncio.Future[WorkerAnswer] = asyncio.get_running_loop().create_future()
        request = asyncio.Event()

        async def exchange(*_: Any) -> WorkerAnswer:
            request.set()
            return await answer

        monkeypatch.setattr(worker_process, "exchange", exchange)
        asking = folder.SubprocessFolder(tmp_path)
        asking._worker._process = object()  # type: ignore[assignment]  # never asked
        task = asyncio.create_task(asking.reclaim(urgent=False))
        await request.wait()
        answer.set_result(WorkerAnswer("reclaim"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


READY = "import sys, os, signal, time\nread = sys.stdin.readline\n"
ANSWER = "print('{\"task\":' + read().strip() + '}', flush=True)\n"
HEALTHY = "for line in sys.stdin:\n    print('{\"task\":' + line.strip() + '}', flush=True)"
DEATHS = {
    "it exits at its start": "sys.exit(3)",
    "it is killed at its start": "os.kill(os.getpid(), signal.SIGKILL)",
    "it exits while it reads": "sys.stdin.read(1); sys.exit(0)",
    "it is killed while it folds": "read(); os.kill(os.getpid(), signal.SIGKILL)",
    "it is terminated while it folds": "read(); os.kill(os.getpid(), signal.SIGTERM)",
    "it raises": "read(); raise MemoryError",
    "it closes its output": "read(); os.close(1); time.sleep(600)",
    "it closes its input": "os.close(0); time.sleep(0.1); print('{}', flush=True); time.sleep(600)",
    "it answers with half a line": "read(); print('{\"task\":', end='', flush=True); sys.exit(0)",
    "it answers with other bytes": "read(); os.write(1, bytes(range(256)) + b'\\n'); time.sleep(600)",
    "it answers with another type": "read(); print('[]', flush=True); time.sleep(600)",
    "it answers without a task": "read(); print('{}', flush=True); time.sleep(600)",
    "it answers another task": 'read(); print(\'{"task":"fold 6"}\', flush=True); time.sleep(600)',
    "it answers without end": "read(); os.write(1, b'x' * 200_000); time.sleep(600)",
    "it dies after its answer, while it is idle": ANSWER + "sys.exit(0)",
    "it is killed after its answer": ANSWER + "os.kill(os.getpid(), signal.SIGKILL)",
}


class Workers:
    """Starts the given programs instead of the fold worker, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, programs: list[str]) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        start = asyncio.create_subprocess_exec

        async def exec_program(*_: Any, **pipes: Any) -> asyncio.subprocess.Process:
            program = programs[min(len(self.processes), len(programs) - 1)]
            self.processes.append(await start(sys.executable, "-c", READY + program, **pipes))
            return self.processes[-1]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", exec_program)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_worker_may_die_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, run: Callable[..., None]
) -> None:
    """Its task is interrupted, nothing else, and the next task starts another worker."""
    workers = Workers(monkeypatch, [DEATHS[death], HEALTHY])
    if "closes" in death:
        monkeypatch.setattr("headwater.limits.FOLD_TIMEOUT_S", 2.0)  # uvloop does not notice a closed output

    async def work() -> None:
        asking = folder.SubprocessFolder(tmp_path)
        interruptions = 0
        for number in (7, 7, 8):
            try:
                await asking.fold(number)
            except folder.FoldInterruptedError as error:
                assert "its process ended with code" in str(error)  # noqa: PT017 - it need not fail
                interruptions += 1
                monkeypatch.setattr("headwater.limits.FOLD_TIMEOUT_S", LIMIT_S)
            if len(workers.processes) == 1:
                await workers.processes[0].wait()  # it is idle, and ends before the next task
        assert interruptions == 1
        assert len(workers.processes) == 2
        await asking.close()
        assert [process.returncode is None for process in workers.processes] == [False, False]

    run(work())


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_signals_to_the_group_of_the_server_do_not_reach_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., None]
) -> None:
    """Ctrl-C would otherwise end a worker that is just starting and does not ignore it yet."""
    workers = Workers(monkeypatch, [HEALTHY])

    async def work() -> None:
        asking = folder.SubprocessFolder(tmp_path)
        await asking.fold(1)
        assert os.getpgid(workers.processes[0].pid) == workers.processes[0].pid
        await asking.close()

    run(work())


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_worker_that_died_while_idle_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., None]
) -> None:
    workers = Workers(monkeypatch, [ANSWER])

    async def work() -> None:
        asking = folder.SubprocessFolder(tmp_path)
        await asking.fold(1)
        await workers.processes[0].wait()
        for _ in range(10):  # turns of the loop, in which it may notice the end
            await asyncio.sleep(0)
        await asking.close()

    run(work())
