"""Tasks in the background: kept, waited for, cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.tasks import Tasks, in_thread
from tests.waiting import wait_until_async


def run(body: Callable[[Tasks], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(Tasks())

    asyncio.run(main())


def test_tasks_are_kept_until_they_end() -> None:
    async def body(tasks: Tasks) -> None:
        steps: list[int] = []

        async def work() -> None:
            for number in range(3):
                await asyncio.sleep(0)
                steps.append(number)

        tasks.start(work())
        gc.collect()
        assert len(tasks) == 1
        await tasks.ended()
        assert (steps, len(tasks)) == ([0, 1, 2], 0)

    run(body)


def test_waiting_includes_tasks_that_tasks_start_and_ignores_errors() -> None:
    async def body(tasks: Tasks) -> None:
        ended: list[str] = []

        async def second() -> None:
            await asyncio.sleep(0)
            ended.append("second")
            raise ValueError

        async def first() -> None:
            tasks.start(second())
            ended.append("first")

        tasks.start(first())
        await tasks.ended()
        assert (ended, len(tasks)) == (["first", "second"], 0)

    run(body)


def test_cancelled_tasks_end() -> None:
    async def body(tasks: Tasks) -> None:
        waiting = tasks.keep(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.ended()
        assert waiting.cancelled()

    run(body)


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancellation_waits_for_a_thread_and_undoes_its_work(fails: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    undone: list[str] = []

    def work() -> str:
        begun.set()
        go_on.wait()
        if fails:
            raise OSError("no")
        return "opened"

    async def undo(result: str) -> None:
        undone.append(result)

    async def body(tasks: Tasks) -> None:
        running = asyncio.create_task(in_thread(work, undo))
        await wait_until_async(begun.is_set)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
            assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert undone == ([] if fails else ["opened"])
        assert await in_thread(lambda: "done", undo) == "done"

    run(body)
