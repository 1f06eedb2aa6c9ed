"""Tasks in the background: kept, waited for, cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from headwater.tasks import Tasks


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
        waiting = tasks.keep(asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.ended()
        assert waiting.cancelled()

    run(body)
