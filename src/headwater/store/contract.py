"""What the engine asks of a store.

A store keeps records in the order given, finds streams by path and by id, and reads ranges of their bytes. It knows
nothing of what a request means: which record to keep is decided before it is asked. The states it returns are
copies that the caller may change.

The contract leaves room for a store that several servers share: a state's `version` counts the events that made it,
so such a store can refuse a batch that was decided on a state that someone else has moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from headwater.log.events import Record
from headwater.log.state import Document, StreamState
from headwater.measures import Histogram
from headwater.store.pieces import Piece, RecordEnd


class RefusedError(Exception):
    """There was no room for a batch: nothing of it was kept, and another may be tried later."""


class Commit(msgspec.Struct, gc=False):
    """A record, and for each event the stream as it is after the batch, or the document; None for a deleted one.

    The engine goes on changing the states as soon as `commit` returns. A store copies what it keeps.
    """

    record: Record
    after: tuple[StreamState | Document | None, ...]


Done: TypeAlias = Callable[[BaseException | None], None]


class Space(msgspec.Struct, frozen=True):
    """The room that a store takes, and what is left for it."""

    index_bytes: int
    journal_bytes: int
    free_bytes: int


class StoreReport(msgspec.Struct, frozen=True):
    """What a store has measured and how it is, for an operator. A store that keeps nothing has little to tell."""

    syncs: Histogram | None = None  # seconds that each sync of the journal took
    folds: Histogram | None = None  # seconds that each fold of a segment took
    fold_failures: int = 0  # folds that were interrupted, or found no room
    unfolded_segments: int = 0  # sealed ones, that wait for the fold
    unfolded_bytes: int = 0  # of the journal, since the last fold
    behind: bool = False  # writers wait for the fold
    space: Callable[[], Space] | None = None  # accesses files: call it in a thread


class Store(Protocol):
    @property
    def next_id(self) -> int:
        """Stream ids from here on were never used in this store."""

    @property
    def streams(self) -> int:
        """How many there are, deleted ones that forks still read included; no scan."""

    @property
    def full(self) -> str | None:
        """Why there is no room for more at present."""

    async def start(self, failed: Callable[[BaseException], None]) -> None:
        """Start background work. `failed` is called when the store has failed."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        """Make a batch durable, then call `done` on the event loop. One batch at a time; order is kept.

        `done` gets None, or a RefusedError, or whatever else happened, after which the store is of no use.
        """

    async def load(self, path: str) -> StreamState | None:
        """The durable state of the stream at a path, deleted ones that forks still read included."""

    async def load_id(self, stream_id: int) -> StreamState | None:
        """The durable state of a stream, whatever its path is now used for."""

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        """Whole records of one stream's own bytes in [start, end): as many as fit in `bytes_max`, at least one.

        `end` may lie inside a record (a fork can leave there); `start` may not (UnalignedReadError). LookupError
        where the stream does not exist.
        """

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        """The records of one stream's own bytes in [start, end), without the bytes; otherwise as `read`."""

    async def boundary(self, stream_id: int, position: int) -> int:
        """The last position up to the one given where a record of the stream's own bytes begins or ends."""

    async def position_at(self, stream_id: int, at_ms: int) -> int | None:
        """Where the first of the stream's own records begins that was appended at or after a moment."""

    async def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        """Streams in path order whose path has the prefix and sorts after `after`; without their producers."""

    async def due(self, since_ms: int, now_ms: int, limit: int) -> list[str]:
        """Paths of streams that may have expired in a period. A hint: renewals may not have reached the store."""

    async def document(self, key: str) -> Document | None: ...

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        """Documents in key order whose key has the prefix and sorts after `after`."""

    def report(self) -> StoreReport:
        """What an operator may want to know. It is quick, and changes nothing."""

    def relieve(self) -> None:
        """Memory is short: begin to free what can be had again."""

    async def close(self) -> None:
        """Finish what is in progress and release every resource."""
