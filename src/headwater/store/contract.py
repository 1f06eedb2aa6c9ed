"""The interface between the engine and a store.

A store keeps records in order, finds streams by path and by id, and reads ranges of their bytes. It does not decide
anything: the engine has decided which records to store. The states that it returns are copies, which the caller may
change.

A store can be shared by several servers (`Store.shared`; it is a `SharedStore` then). Each of them keeps states in
memory, which may be outdated, so nothing is stored or answered unless what it was decided on is current. The `version`
of a state counts its events and grows by one with each of them, so a state is current if its version is:

- Each record says what it was decided on (`Commit.expects`). One of the batch that does not hold is not stored, and
  `commit` names it (`OutdatedError`).
- An error or an answer without events is validated in the same way, as a record without events.
- A read is validated with `changed`.

What others change is also announced (`watch`), which is only a hint: live readers learn of it sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast

import msgspec
import xxhash

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


class OutdatedError(Exception):
    """Some records of a batch were decided on states that are not current. All others of the batch are stored."""

    def __init__(self, records: Sequence[int]) -> None:
        super().__init__(f"{len(records)} records were decided on outdated states")
        self.records = records  # their indices in the batch, in order


class NotStoredError(Exception):
    """Nothing of a batch was stored, because the one before it was not stored completely."""

    def __init__(self) -> None:
        super().__init__("the batch before was not stored, or not completely")


class DocumentKey(NamedTuple):
    """The key of a document, to tell it from a path."""

    key: str


Key: TypeAlias = int | str | DocumentKey
"""What has a version: a stream, named by its id; a path, whose version is the id of the stream there; a document."""

Expects: TypeAlias = Mapping[Key, int]
"""What a record was decided on: the version of each stream and document that was read or is changed; 0: there was none.

Streams are named by their id, also a created one, with 0. A path is named if nothing was found there, with 0, and if
the record deletes the stream that is there, with its id. Versions of documents are those of `version_of`."""


class Commit(msgspec.Struct, gc=False):
    """A record, for each event the stream or document after the batch (a deleted stream as it was, a deleted document
    as None), and for a shared store what the record was decided on; None for a store that is not shared.

    The engine changes the states after `commit` returns, so a store must copy what it keeps, or encode it at once.
    """

    record: Record
    after: tuple[StreamState | Document | None, ...]
    expects: Expects | None


Done: TypeAlias = Callable[[BaseException | None], None]


def version_of(document: Document | None) -> int:
    """The version of a document in `Expects`: 0 if there is none. A document that is deleted and written again begins
    with version 1 again, so this number is made from its content too. It is less than 2**63."""
    if document is None:
        return 0
    return xxhash.xxh3_64_intdigest(document.data, document.version) >> 1 or 1


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


class Moved(NamedTuple):
    """A stream that another server has created, changed or deleted. `version` is 0 after its deletion."""

    id: int
    path: str
    version: int


class HeldRole(NamedTuple):
    """A role that one server has at a time. `token` grows each time that the role changes hands, so that what a former
    holder does late can be told by its smaller token."""

    name: str
    token: int
    left_s: float  # how long the holder has it from now on, by the clock of the store, unless it is renewed


class Store(Protocol):
    @property
    def shared(self) -> bool:
        """Whether other servers use the store too. It is a `SharedStore` then."""

    @property
    def next_id(self) -> int:
        """The first stream id that was never used in this store."""

    @property
    def timeline(self) -> int:
        """The id of the current timeline, which is never used as a stream id; 0 if the store was never restored. That
        of a shared store may change (`SharedStore.on_replaced`)."""

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


class SharedStore(Store, Protocol):
    """A store that several servers use at the same time.

    `commit`: all states that a batch expects are compared at one moment, at which its records become durable and
    visible to all servers, together. A state that an earlier record of the same batch changes is compared with the
    version before the batch: only the first record of a batch that expects a key is compared with the store, and the
    others depend on it. Records that share a key are stored together or are outdated together, and so on with those
    that share a key with one of them. A record without events is only compared. A batch in which no record has events
    needs no transaction that writes. A record that creates a stream at a path at which another server has created one
    meanwhile is outdated, also if that one was deleted since and had a larger id: at each path ids rise.

    `commit` may be called again before a batch has ended, for at most SHARED_BATCHES_AT_ONCE batches that all have
    events. The later one was decided on the states after the earlier one, so nothing of it is stored, and it ends with
    NotStoredError, unless the earlier one was stored completely. `done` is called in the order of the batches.

    `done` gets None, OutdatedError, NotStoredError, RefusedError or UnavailableError. After the last three nothing of
    the batch is stored, nor will be: if the connection was lost and it is unknown whether a batch was stored, the store
    finds that out before it calls `done`. A batch of a server that was replaced, or that hung and was taken for dead,
    is refused then. Any other error is final: the store cannot be used any more.

    All methods raise UnavailableError if the store cannot be reached. What is read is what was committed at some moment
    between the call and its return, never something older.

    `Store.next_id` and `Store.latest` are unused: ids come from `reserve_id`. `streams` may be approximate.
    """

    def wall_s(self) -> float:
        """The wall clock that counts for all servers, in seconds since 1970."""

    async def changed(self, known: Expects) -> dict[Key, int]:
        """Of these, the ones that have another version now, with it. The version 0: it does not exist."""

    async def locked(self, keys: Collection[Key]) -> dict[Key, StreamState | Document | None]:
        """The present states of all these keys. Until the next commit of this server that expects any of them, other
        servers cannot change those that exist: their commits wait. So a server that has lost against another one does
        not lose again. Whoever locks several keys does it in one order, so that there are no deadlocks.

        The locks are released by the end of that commit, or by themselves after a short while. A commit after that is
        compared as any other."""

    async def reserve_id(self) -> int:
        """An id for a stream, larger than all that any server has used or reserved before, and than those of all
        timelines. At the start of a server, and after another database took the place of this one, it is also at least
        the time in microseconds since 1970, so that ids of streams that were lost are not used again."""

    async def watch(self, moved: Callable[[Sequence[Moved]], None]) -> None:
        """Call `moved`, on the event loop, with streams that other servers have changed, from now on. Calls may be
        late, lost, repeated or in another order: `moved_since` has all."""

    async def moved_since(self, cursor: str) -> tuple[list[Moved], str]:
        """The streams that other servers have created or changed since the moment of a cursor, each with its newest
        version, and the next cursor; of deleted ones at least the newest. None is left out, whatever was in progress at
        that moment. The empty cursor: nothing, and the cursor of the present moment. If a part is returned, because
        there is much, the next cursor continues after it."""

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        """Call `replaced`, on the event loop, when another database took the place of this one: a standby was promoted,
        or a backup restored. `timeline` is another one then, and what was acknowledged may be missing, so what was read
        before means nothing any more. It is called before anything of the other database is returned. A batch that was
        passed to `commit` before is stored if `done` says so, and otherwise never will be."""

    async def recount(self) -> None:
        """Set `streams`, which counts what this server creates and deletes, to the number of all servers' streams."""

    async def hold(self, name: str, seconds: float) -> HeldRole | None:
        """Take a role for some time, or renew it if this server has it already. None if another server has it."""

    def give_up(self) -> None:
        """The server stops: report a batch in progress as failed, whose outcome is unknown then, and do not wait for a
        store that does not answer."""

    async def release(self, role: HeldRole) -> None:
        """Give up a role, unless another server has it already."""


def shared(store: Store) -> SharedStore | None:
    """The store, if it is shared."""
    return cast("SharedStore", store) if store.shared else None
