"""Where a reader is: what it has in hand, and the position after what it handed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from headwater.client.effects import Batch

T = TypeVar("T")


class Cursor(Generic[T]):
    def __init__(self, offset: str, skip: int) -> None:
        self.offset = offset
        self.skip = skip
        self.up_to_date = False
        self.closed = False
        self._batch: Batch[T] | None = None
        self._rest: Iterator[T] = iter(())

    def take(self, batch: Batch[T]) -> None:
        """The next batch is in hand; the one before was handed out."""
        self._batch = batch
        self._rest = iter(batch.items)

    def items(self) -> Iterator[T]:
        """Hand out one item after the other. A batch of several is one of messages, which skip counts."""
        batch = self._batch
        if batch is None:
            return
        if len(batch.items) > 1:
            for item in self._rest:
                self.skip += 1
                yield item
        rest = list(self._rest)
        self._arrive(batch)
        yield from rest

    def batch(self) -> Batch[T] | None:
        """Hand out what is left of the batch in hand."""
        batch = self._batch
        if batch is None:
            return None
        rest = list(self._rest)
        self._arrive(batch)
        return batch if len(rest) == len(batch.items) else msgspec.structs.replace(batch, items=rest)

    def _arrive(self, batch: Batch[T]) -> None:
        self._batch, self._rest = None, iter(())
        self.offset, self.skip = batch.offset, batch.skip
        self.up_to_date, self.closed = batch.up_to_date, batch.closed
