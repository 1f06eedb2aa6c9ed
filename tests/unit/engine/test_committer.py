"""The order of batches, and what becomes of those after one that has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from headwater.engine.committer import Committer, PendingRecord
from headwater.errors import UnavailableError
from headwater.log.commands import Reply
from headwater.log.events import Touched
from headwater.store.contract import Commit, Done, NotStoredError, OutdatedError, Store
from tests import virtual_time


class Batches:
    """A store that ends batches when the test says so, and what the committer reports."""

    def __init__(self, *, shared: bool = True) -> None:
        self.shared = shared
        self.passed: list[list[int]] = []
        self.done: list[Done] = []
        self.durable: list[list[int]] = []
        self.failed: list[tuple[list[int], str]] = []
        self.on_failure: Callable[[], None] = lambda: None
        self.committer = Committer(
            cast(Store, self),
            backlog_bytes_max=1 << 20,
            durable=lambda records: self.durable.append(numbers(records)),
            failed=self._failed,
        )

    def _failed(self, records: list[PendingRecord], error: BaseException) -> None:
        self.failed.append((numbers(records), type(error).__name__))
        self.on_failure()

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        self.passed.append(numbers(batch))
        self.done.append(done)

    def end(self, error: BaseException | None = None) -> None:
        """The first batch in progress ends."""
        self.done.pop(0)(error)

    async def add(self, *some: int) -> None:
        """Records with one event each, in one turn of the loop."""
        for number in some:
            self.committer.add(record(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def record(number: int, *, has_events: bool = True) -> PendingRecord:
    events = (Touched(number, 1),) if has_events else ()
    return PendingRecord(events, (), {number: 1}, (), Reply(), None)


def numbers(records: Sequence[Commit]) -> list[int]:
    return [number for one in records for number in cast("dict[int, int]", one.expects or {})]


def run(work: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(work)


def test_two_batches_are_in_progress_and_end_in_order() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        await batches.add(3)
        assert batches.passed == [[1], [2]]
        assert batches.committer.backlog[0] == 3
        batches.end()
        assert batches.passed == [[1], [2], [3]]
        batches.end()
        batches.end()
        assert batches.durable == [[1], [2], [3]]
        assert batches.committer.measures.seconds.count == 3

    run(main())


def test_a_store_that_is_not_shared_has_one_batch_in_progress() -> None:
    async def main() -> None:
        batches = Batches(shared=False)
        await batches.add(1)
        await batches.add(2)
        await batches.add(3)
        assert batches.passed == [[1]]
        batches.end()
        assert batches.passed == [[1], [2, 3]]

    run(main())


def test_the_second_batch_has_as_many_records_as_the_first_one() -> None:
    """Otherwise batches would become smaller."""

    async def main() -> None:
        batches = Batches()
        await batches.add(1, 2, 3)
        await batches.add(4, 5)
        assert batches.passed == [[1, 2, 3]]
        await batches.add(6)
        assert batches.passed == [[1, 2, 3], [4, 5, 6]]

    run(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_without_events_is_alone(*, is_first: bool) -> None:
    """It is compared by a read, which may be earlier or later than the other batch."""

    async def main() -> None:
        batches = Batches()
        batches.committer.add(record(1, has_events=not is_first))
        await asyncio.sleep(0)
        batches.committer.add(record(2, has_events=is_first))
        await asyncio.sleep(0)
        assert batches.passed == [[1]]
        batches.end()
        assert batches.passed == [[1], [2]]

    run(main())


def test_records_that_are_committed_alone_are_alone() -> None:
    async def main() -> None:
        batches = Batches()
        batches.committer.pause()
        await batches.add(2)
        batches.committer.commit_alone(lambda: batches.committer.add(record(1)))
        await batches.add(3)
        assert batches.passed == [[1]]
        batches.end()
        assert batches.passed == [[1], [2, 3]]

    run(main())


def test_a_failure_is_reported_when_the_later_batch_has_ended_and_its_records_wait_again() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        await batches.add(3)
        waiting: list[list[int]] = []
        batches.on_failure = lambda: waiting.append(numbers(batches.committer.withdraw_sharing([record(2)])))
        batches.end(OutdatedError([0]))
        assert not batches.failed
        assert batches.passed == [[1], [2]], "nothing is sent meanwhile"
        assert batches.committer.backlog[0] == 3
        batches.end(NotStoredError())
        assert batches.failed == [([1], "OutdatedError")]
        assert waiting == [[2]]
        assert batches.passed == [[1], [2], [3]]
        assert batches.committer.measures.outdated == 1
        assert batches.committer.measures.failures == 0

    run(main())


def test_a_batch_that_was_not_stored_is_sent_again_before_what_waits() -> None:
    """The first one was sent again after a lost connection, and the second one was not."""

    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        await batches.add(3)
        batches.end()
        assert batches.passed == [[1], [2], [3]]
        batches.end(NotStoredError())
        batches.end(NotStoredError())
        assert batches.durable == [[1]]
        assert not batches.failed
        assert batches.passed == [[1], [2], [3], [2, 3]]

    run(main())


def test_the_second_batch_fails_by_itself() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        batches.end()
        batches.end(UnavailableError("no database"))
        assert batches.durable == [[1]]
        assert batches.failed == [([2], "UnavailableError")]

    run(main())


def test_both_batches_fail_in_their_order_if_the_store_cannot_be_used_any_more() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        batches.end(ConnectionError("unknown"))
        batches.end(ConnectionError("unknown"))
        assert batches.failed == [([1], "ConnectionError"), ([2], "ConnectionError")]

    run(main())


def test_a_batch_that_is_stored_after_one_that_was_not_is_a_failure() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        batches.end(UnavailableError("no database"))
        batches.end()
        assert batches.failed == [([1], "UnavailableError"), ([2], "RuntimeError")]
        assert not batches.durable

    run(main())


def test_what_was_given_up_is_not_sent_again() -> None:
    async def main() -> None:
        batches = Batches()
        await batches.add(1)
        await batches.add(2)
        assert [numbers(records) for records in batches.committer.give_up()] == [[1], [2]]
        batches.end(UnavailableError("another database"))
        batches.end(NotStoredError())
        assert batches.failed == [([1], "UnavailableError"), ([2], "NotStoredError")]
        assert batches.passed == [[1], [2]]

    run(main())
