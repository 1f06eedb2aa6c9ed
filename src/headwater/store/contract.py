"""What the engine asks of a store.

A store keeps records in the order given, finds streams by path and by id, and reads ranges of their bytes. It
knows nothing of what a request means: which record to keep is decided before it is asked.

The contract leaves room for a store that several servers share: a state's `version` tells how many events made
it, so such a store can refuse a batch that was decided on a state someone else has moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headwater.log.values import Record, StreamState


class UnalignedReadError(ValueError):
    """A read that starts inside a record."""


class RefusedError(Exception):
    """There was no room for a batch: nothing of it was kept, and another may be tried later.

    `durable` gives a stream as it is without the batch, None if it does not exist then.
    """

    def __init__(self, reason: str, durable: Callable[[int], StreamState | None]) -> None:
        super().__init__(reason)
        self.durable = durable


class Commit(msgspec.Struct, frozen=True, gc=False):
    """One record and the streams it touched, as they are after it.

    The states are the engine's own objects. They may be ahead of what is durable by the records still under way;
    only the engine reads them, and the engine decides on the newest.
    """

    record: Record
    states: tuple[StreamState, ...]


Done = Callable[[BaseException | None], None]


class Store(Protocol):
    next_id: int  # ids from here on were never used; the engine counts it up
    full: str | None  # why there is no room at present
    failed: Callable[[BaseException], None] | None  # whom to tell when the store cannot go on

    async def start(self) -> None:
        """Begin what goes on in the background."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        """Make a batch durable, then call `done` on the event loop. One batch at a time; order is kept.

        `done` gets None, or a RefusedError, or whatever else happened, after which the store is of no use.
        """

    async def load(self, path: str) -> StreamState | None:
        """The stream at a path, deleted ones that forks still read included."""

    async def load_id(self, stream_id: int) -> StreamState | None:
        """A stream by its id, whatever its path is now used for."""

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        """Whole records of one stream's own bytes in [start, end): as many as fit in `bytes_max`, at least one.

        `end` may lie inside a record (a fork can leave there); `start` may not.
        """

    async def boundary(self, stream_id: int, position: int) -> int:
        """The last place at or before a position of one stream's own bytes where a record begins or ends."""

    async def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        """Streams in path order whose path has the prefix and sorts after `after`."""

    async def due(self, now_ms: int, limit: int) -> list[str]:
        """Paths of streams that may have expired by now. A hint: renewals may not have reached the store."""

    async def close(self) -> None:
        """Finish what is under way and let go of every resource."""
