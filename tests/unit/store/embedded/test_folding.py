"""Folding in virtual time: what the fold worker is asked for, how failures are repeated, how much is reclaimed."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from headwater import limits
from headwater.store.embedded.folder import FoldInterruptedError, IndexFullError, IndexLockedError, Reclaimed
from headwater.store.embedded.folding import Folding
from tests.virtual_time import run


class Worker:
    """A fold worker with garbage: each step of reclaiming removes `step_bytes` of it."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.times_s: list[float] = []
        self.failures: list[Exception] = []
        self.garbage_bytes = 0
        self.pages = 0
        self.step_bytes = 10
        self.added_bytes = 100
        self.deleted_bytes = 0  # garbage of each fold

    def _begin(self, task: str) -> None:
        self.tasks.append(task)
        self.times_s.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)

    async def fold(self, number: int) -> int:
        self._begin(f"fold {number}")
        await asyncio.sleep(0.01)
        self.garbage_bytes += self.deleted_bytes
        return self.added_bytes

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        self._begin("reclaim urgently" if urgent else "reclaim")
        await asyncio.sleep(0.01)
        removed = min(self.step_bytes, self.garbage_bytes)
        self.garbage_bytes -= removed
        self.pages = max(0, self.pages + removed - 5)
        return Reclaimed(removed, self.garbage_bytes > 0, self.garbage_bytes > 0 or self.pages > 0)

    async def close(self) -> None: ...


class Owner:
    is_full = False

    def __init__(self) -> None:
        self.folded_segments: list[int] = []
        self.full: list[bool] = []
        self.errors: list[Exception] = []

    async def folded(self, number: int) -> None:
        self.folded_segments.append(number)

    def resume(self) -> None: ...

    def note_index_full(self, reason: str, *, again: bool) -> None:
        self.full.append(again)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


def test_repeated_deaths_back_off_and_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    worker, owner = Worker(), Owner()
    worker.failures = [FoldInterruptedError("killed") for _ in range(20)]

    async def body() -> None:
        folding = Folding(worker, owner, [])
        folding.add(1)
        await asyncio.sleep(1)
        assert folding.streak.failures >= 2
        folding.reclaim_soon()  # does not shorten the wait
        await folding.join()
        assert folding.deaths == folding.failures == 20
        assert folding.streak.failures == 0

    with caplog.at_level(logging.ERROR):
        run(body())
    assert owner.folded_segments == [1]
    assert owner.errors == []
    assert worker.tasks[:21] == ["fold 1"] * 21
    waits_s = [after - before for before, after in itertools.pairwise(worker.times_s)][:20]
    doubled_s = [min(limits.FOLD_RETRY_MAX_S, limits.FOLD_RETRY_S * 2**number) for number in range(20)]
    assert waits_s == pytest.approx(doubled_s)
    assert caplog.text.count("the fold worker failed and is started again") == 20


def test_a_death_while_reclaiming_is_repeated_too() -> None:
    worker, owner = Worker(), Owner()
    worker.failures = [FoldInterruptedError("killed")] * 3

    async def body() -> None:
        folding = Folding(worker, owner, [])
        folding.reclaim_soon()
        await asyncio.sleep(60)
        assert folding.deaths == 3
        assert worker.tasks == ["reclaim"] * 4

    run(body())


def test_an_index_that_another_program_has_locked_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    worker, owner = Worker(), Owner()
    worker.failures = [IndexLockedError("locked")] * 6

    async def body() -> None:
        folding = Folding(worker, owner, [4])
        folding.wake()
        await folding.join()
        assert (folding.failures, folding.deaths) == (6, 0)

    run(body())
    assert (owner.folded_segments, owner.errors) == ([4], [])
    assert caplog.text.count("the journal is not folded") == 6


def test_a_full_disk_is_tried_again_at_once_with_the_reserve_and_then_later() -> None:
    worker, owner = Worker(), Owner()
    worker.failures = [IndexFullError("full")] * 3

    async def body() -> None:
        folding = Folding(worker, owner, [4])
        folding.wake()
        await folding.join()

    run(body())
    assert owner.full == [False, True, True]
    assert owner.folded_segments == [4]
    assert worker.times_s[1] == worker.times_s[0]
    assert worker.times_s[2] > worker.times_s[1] + limits.FOLD_RETRY_S


def test_any_other_error_stops_the_store() -> None:
    worker, owner = Worker(), Owner()
    worker.failures = [RuntimeError("corrupt")]

    async def body() -> None:
        Folding(worker, owner, [4]).wake()
        await asyncio.sleep(1)

    run(body())
    assert [str(error) for error in owner.errors] == ["corrupt"]


@pytest.mark.parametrize("deleted_bytes", [0, 50, 100, 199])
def test_garbage_does_not_grow_while_segments_always_wait(deleted_bytes: int) -> None:
    """Each fold adds 100 bytes, and makes as many or more of them garbage."""
    worker, owner = Worker(), Owner()
    worker.deleted_bytes = deleted_bytes
    left: list[int] = []

    async def body() -> None:
        folding = Folding(worker, owner, range(100))
        folding.wake()
        while folding.sealed:
            if worker.tasks and worker.tasks[-1].startswith("fold"):
                left.append(worker.garbage_bytes)
            await asyncio.sleep(0.01)
        await folding.stop()

    run(body())
    assert owner.folded_segments == list(range(100))
    assert max(left) <= deleted_bytes


def test_a_large_deletion_delays_a_fold_by_a_bounded_number_of_steps() -> None:
    worker, owner = Worker(), Owner()
    worker.garbage_bytes = 1_000_000

    async def body() -> None:
        folding = Folding(worker, owner, range(10))
        folding.wake()
        await folding.join()
        await folding.stop()

    run(body())
    folds = [number for number, task in enumerate(worker.tasks) if task.startswith("fold")]
    steps = {after - before - 1 for before, after in itertools.pairwise(folds)}
    assert steps == {limits.RECLAIM_FACTOR * worker.added_bytes // worker.step_bytes}


def test_without_other_work_steps_follow_each_other_until_all_space_is_returned() -> None:
    worker, owner = Worker(), Owner()
    worker.garbage_bytes = 10_000

    async def body() -> None:
        folding = Folding(worker, owner, [])
        folding.reclaim_soon()
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        assert worker.garbage_bytes == worker.pages == 0
        assert len(worker.tasks) == 2_000  # of 5 bytes that are returned
        took_s = worker.times_s[-1] - began_s
        assert took_s < 2_000 * (0.01 + 2 * limits.RECLAIM_PAUSE_S)

    run(body())
