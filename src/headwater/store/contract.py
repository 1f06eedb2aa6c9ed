"""The interface between the engine and a store.

A store keeps records in order, finds streams by path and by id, and reads ranges of their bytes. It does not decide
anything: the engine has decided which records to store. The states that it returns are copies, which the caller may
change.

The interface also allows a store that several servers share. The `version` of a state counts its events, so such a
store can refuse a batch that was decided on an outdated state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from headwater.log.events import Record
from headwater.log.moments import Moment
from headwater.log.state import Document, StreamState
from headwater.measures import Histogram
from headwater.store.pieces import Piece, RecordEnd


class RefusedError(Exception):
    """There was no room for a batch. Nothing of it was stored, and a later batch may succeed."""


class NoMemoryError(RefusedError):
    """The room that was missing is memory."""

    def __init__(self) -> None:
        super().__init__("there was no memory to write a batch")


class Commit(msgspec.Struct, gc=False):
    """A record, and for each event the stream or document after the batch; None if it was deleted.

    The engine changes the states after `commit` returns, so a store must copy what it keeps.
    """

    record: Record
    after: tuple[StreamState | Document | None, ...]


Done: TypeAlias = Callable[[BaseException | None], None]


class BackupReport(msgspec.Struct, frozen=True):
    """What the backup to one target has left in the data directory."""

    reached_ms: int  # everything acknowledged before this moment is in the target; 0: nothing yet
    failures: int
    failing: bool  # the last attempt failed


class Space(msgspec.Struct, frozen=True):
    """What is on the disk of a store: the space that it uses, the free space, and the state of its backups."""

    index_bytes: int
    journal_bytes: int
    free_bytes: int
    backups: tuple[BackupReport, ...] = ()


class StoreReport(msgspec.Struct, frozen=True):
    """Measurements and state of a store. A store in memory leaves most fields at their defaults."""

    syncs: Histogram | None = None  # seconds per fsync of the journal
    folds: Histogram | None = None  # seconds per fold of a segment
    fold_failures: int = 0  # interrupted folds, and folds without enough disk space
    unfolded_segments: int = 0  # sealed segments that wait for the fold
    unfolded_bytes: int = 0  # of the journal, since the last fold
    behind: bool = False  # writers wait for the fold
    space: Callable[[], Space] | None = None  # accesses files: call it in a thread
    fold_worker_deaths: int = 0  # how often the process of the fold has ended
    fold_stuck: bool = False  # several attempts in a row to fold or to reclaim space have failed
    damaged_reads: int = 0  # reads of damaged rows


class StatePage(NamedTuple):
    """Streams in path order, without their producers. A page may have few streams or none and not be the last one,
    because the work for a page is bounded."""

    states: list[StreamState]
    next_after: str | None  # the path after which the next page begins; None if this is the last page


class Due(NamedTuple):
    """Streams that may have expired, or may have something to trim. Some may not: a renewal may not be stored yet."""

    paths: list[str]
    next_after: tuple[int, int] | None  # a deadline and an id, after which to continue; None if there are no more


class Store(Protocol):
    @property
    def next_id(self) -> int:
        """The first stream id that was never used in this store."""

    @property
    def timeline(self) -> int:
        """The id of the current timeline, which is never used as a stream id; 0 if the store was never restored."""

    @property
    def streams(self) -> int:
        """The number of streams, including deleted ones that forks still read. This does not scan."""

    @property
    def latest(self) -> Moment:
        """The moment of the last batch when the store was opened."""

    @property
    def full(self) -> str | None:
        """Why the disk is full; None if it is not."""

    async def start(self, failed: Callable[[BaseException], None], moment: Callable[[], Moment]) -> None:
        """Start background work. `failed` is called when the store has failed, `moment` for the time of each batch."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        """Make a batch durable, then call `done` on the event loop. Batches are committed one at a time, in order.

        `done` gets None or a RefusedError. After any other error the store cannot be used.
        """

    async def load(self, path: str) -> StreamState | None:
        """The durable state of the stream at a path, also of a deleted stream that forks still read."""

    async def load_id(self, stream_id: int) -> StreamState | None:
        """The durable state of a stream, also if another stream has its path."""

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        """Read whole records of a stream's own bytes in [start, end): as many as fit into `bytes_max`, at least one.

        `end` may be inside a record, because a fork may begin there. Raises UnalignedReadError if `start` is inside a
        record, and LookupError if the stream does not exist or was trimmed there.

        A store frees the bytes that a trimmed stream does not have any more and no fork reads (`StreamState.unread`),
        at some time after the trim.
        """

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        """The same as `read`, but only the ends and times of the records."""

    async def boundary(self, stream_id: int, position: int) -> int:
        """The last record boundary of the stream's own bytes at or before a position."""

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        """The position of the first of the stream's own records, from `start` on, that was appended at or after a
        time."""

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        """Up to `limit` streams whose path has the prefix and sorts after `after`. The work is proportional to `limit`,
        not to the number of streams."""

    async def due(self, after: tuple[int, int], now_ms: int, limit: int) -> Due:
        """Up to `limit` streams whose `due_ms` has passed, in order of that time and id, after a pair of these. The
        work is proportional to `limit`."""

    async def document(self, key: str) -> Document | None: ...

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        """Documents in key order whose key has the prefix and sorts after `after`."""

    def report(self) -> StoreReport:
        """A copy of the measurements. This is fast."""

    def relieve(self) -> None:
        """Start to free memory that can be loaded again."""

    async def close(self) -> None:
        """Finish work in progress and release all resources."""
