"""Lookups are answered in groups, each with its own answer or error."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.limits import INDEX_READERS, LOOKUPS_AT_ONCE
from headwater.store.embedded.lookups import Lookups


class Threads(ThreadPoolExecutor):
    """Counts its calls, which wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(INDEX_READERS)
        self.calls = 0
        self.go = threading.Event()

    def submit(self, *args, **options):  # type: ignore[no-untyped-def]
        self.calls += 1
        return super().submit(*args, **options)


def half(number: int) -> int:
    if number % 2:
        raise LookupError(f"{number} is odd")
    return number // 2


def test_what_waits_for_a_reader_is_one_group_and_each_gets_its_own_answer() -> None:
    async def body() -> None:
        with Threads() as threads:

            def slowly(number: int) -> int:
                threads.go.wait()
                return half(number)

            lookups = Lookups(threads, slowly)
            tasks = [asyncio.create_task(lookups.ask(number)) for number in range(INDEX_READERS + LOOKUPS_AT_ONCE)]
            await asyncio.sleep(0)
            assert threads.calls == INDEX_READERS
            threads.go.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert threads.calls == INDEX_READERS + 1
        for number, answer in enumerate(answers):
            if number % 2:
                assert isinstance(answer, LookupError)
                assert str(number) in str(answer)
            else:
                assert answer == number // 2

    asyncio.run(body())


def test_a_lookup_that_was_cancelled_does_not_disturb_its_group() -> None:
    async def body() -> None:
        with Threads() as threads:

            def slowly(number: int) -> int:
                threads.go.wait()
                return number

            lookups = Lookups(threads, slowly)
            tasks = [asyncio.create_task(lookups.ask(number)) for number in range(INDEX_READERS + 3)]
            await asyncio.sleep(0)
            tasks[-2].cancel()
            threads.go.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(-2), asyncio.CancelledError)
        assert answers == [0, 1, 2, 4]

    asyncio.run(body())


def test_after_the_readers_were_closed_a_lookup_fails() -> None:
    async def body() -> None:
        threads = Threads()
        lookups = Lookups(threads, half)
        assert await lookups.ask(4) == 2
        threads.shutdown()
        with pytest.raises(RuntimeError):
            await lookups.ask(4)

    asyncio.run(body())
