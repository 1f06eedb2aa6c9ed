"""The state of a reader: its current batch, and the position after the last delivered message."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Generic, TypeVar

import msgspec

from headwater.client.effects import Batch
from headwater.positions import BEGINNING, Position

T = TypeVar("T")


class Cursor(Generic[T]):
    """Items are delivered by plain iteration over a list. The position follows from the number of items left in it."""

    def __init__(self, position: Position) -> None:
        self._done: Batch[T] = Batch([], position)  # the last batch that was delivered completely
        self._held = self._done
        self._rest: Iterator[T] = iter(())

    @property
    def position(self) -> Position:
        place = self._place()
        if place is self._held:
            return place.position
        return place.position.after(len(self._held.items) - length_hint(self._rest), self._held.position.reached)

    @property
    def up_to_date(self) -> bool:
        return self._place() is self._held and self._held.up_to_date

    @property
    def closed(self) -> bool:
        return self._place() is self._held and self._held.closed

    def hold(self, batch: Batch[T]) -> None:
        """Start to deliver the items of a batch one by one."""
        done = self._place()
        if batch.begin and done.position.offset == BEGINNING:
            begin = Position(batch.begin, done.position.skip, done.position.end)
            self._done = msgspec.structs.replace(done, position=begin)
        self._held, self._rest = batch, iter(batch.items)

    @property
    def has_items(self) -> bool:
        return length_hint(self._rest) > 0

    def items(self) -> Iterator[T]:
        """The rest of the current batch. Taking items from it moves the cursor."""
        return self._rest

    def batch(self, batch: Batch[T]) -> Batch[T]:
        """Deliver a whole batch at once."""
        self._held = self._done = batch
        self._rest = iter(())
        return batch

    def remainder(self) -> Batch[T] | None:
        """Deliver the rest of the current batch at once."""
        rest = list(self._rest)
        return self.batch(msgspec.structs.replace(self._held, items=rest)) if rest else None

    def _place(self) -> Batch[T]:
        if not length_hint(self._rest):
            self._done = self._held
        return self._done
