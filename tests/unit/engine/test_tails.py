"""Tails: many readers are notified in turns, each in order."""

from __future__ import annotations

import asyncio

import msgspec

from headwater import limits
from headwater.engine.large_reads import LargeReads
from headwater.engine.messages import Ended, Reason, Slice
from headwater.engine.tails import Tail
from headwater.log.content import ContentKind
from headwater.log.offsets import Offset
from tests import virtual_time

MANY = 2 * limits.DELIVERIES_PER_TURN + 1


class Reader:
    kind = "test"

    def __init__(self) -> None:
        self.told: list[tuple[int, int] | Reason] = []

    def deliver(self, update: Slice) -> None:
        self.told.append((update.start, update.next))

    def ended(self, reason: Reason) -> None:
        self.told.append(reason)


def update(start: int) -> Slice:
    return Slice(1, ContentKind.TEXT, start, start + 1, Offset(1, start + 1), b"x", False, 0)


def test_many_readers_are_notified_in_turns_and_in_order() -> None:
    async def main() -> None:
        tail = Tail(LargeReads(1 << 30))
        readers = [Reader() for _ in range(MANY)]
        tail.subscribers = dict.fromkeys(readers)
        tail.publish(update(0))
        assert sum(len(reader.told) for reader in readers) == limits.DELIVERIES_PER_TURN
        late = Reader()
        tail.subscribers[late] = None
        for start in range(1, 50):  # published before all readers got the previous update, so merged
            tail.publish(update(start))
        tail.end(Ended.DRAINING)
        assert sum(len(reader.told) for reader in readers) == limits.DELIVERIES_PER_TURN
        for _ in range(20):
            await asyncio.sleep(0)
        assert [reader.told for reader in readers] == [[(0, 1), (1, 50), Ended.DRAINING]] * MANY
        assert late.told == [(1, 50), Ended.DRAINING]

    virtual_time.run(main())


def test_pending_updates_are_bounded() -> None:
    async def main() -> None:
        tail = Tail(LargeReads(1 << 30))
        readers = [Reader() for _ in range(MANY)]
        tail.subscribers = dict.fromkeys(readers)
        size = limits.UPDATE_BYTES_MAX // 2 + 1
        for start in range(0, 5 * size, size):
            tail.publish(msgspec.structs.replace(update(start), next=start + size, data=bytes(size)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert all(reader.told == [(0, size), (4 * size, 5 * size)] for reader in readers)  # the rest is in the store

    virtual_time.run(main())


def test_many_reads_that_wait_are_woken_in_turns() -> None:
    async def main() -> None:
        tail = Tail(LargeReads(1 << 30))
        count = 3 * limits.WAKES_PER_TURN
        woken = 0

        async def wait() -> None:
            nonlocal woken
            await tail.wait(30)
            woken += 1

        tasks = [asyncio.create_task(wait()) for _ in range(count)]
        await asyncio.sleep(0.01)
        tail.publish(update(0))
        most = before = 0
        while woken < count:
            await asyncio.sleep(0)
            most, before = max(most, woken - before), woken
        assert most <= limits.WAKES_PER_TURN
        await asyncio.gather(*tasks)

    virtual_time.run(main())


def test_a_failing_reader_does_not_affect_other_readers() -> None:
    class Broken(Reader):
        def deliver(self, update: Slice) -> None:
            raise RuntimeError("broken")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        tail = Tail(LargeReads(1 << 30))
        readers = [Reader() for _ in range(MANY)]
        tail.subscribers = dict.fromkeys([*readers[:600], Broken(), *readers[600:]])
        tail.publish(update(0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert all(reader.told == [(0, 1)] for reader in readers)

    virtual_time.run(main())


def test_the_data_of_a_large_update_counts_and_is_left_out_if_there_is_no_room() -> None:
    size = limits.LARGE_READ_BYTES + 1
    large = LargeReads(size)
    updates: list[Slice] = []
    tail, reader = Tail(large), Reader()
    tail.subscribers = {reader: None}
    reader.deliver = updates.append  # type: ignore[assignment, method-assign]
    sent: list[object] = [large.hold(2, 0, size, bytes(size))]
    for start in (0, size):
        tail.publish(msgspec.structs.replace(update(start), next=start + size, data=bytes(size)))
        sent.clear()
    assert [(piece.start, piece.next, len(piece.data)) for piece in updates] == [
        (size, size, 0),
        (size, 2 * size, size),
    ]
    assert large.held_bytes == size
    updates.clear()
    assert large.held_bytes == 0
