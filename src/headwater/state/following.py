"""The part of a StreamDB that both shells share: settings, position, checkpoints, and handling of a failed start."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from headwater.client import forking
from headwater.client.effects import Batch
from headwater.client.forking import Unpicklable
from headwater.client.reading import LiveMode
from headwater.errors import (
    ClientError,
    ForkedError,
    HeadwaterError,
    InvalidEventError,
    InvalidOffsetError,
    OffsetTrimmedError,
    SchemaMismatchError,
)
from headwater.positions import BEGINNING, NOW, Position
from headwater.protocol.state.events import EventDecoder
from headwater.state.bootstrap import Start, decode_checkpoint, encode_checkpoint
from headwater.state.checkpoints import load
from headwater.state.database import Counts, Database, OnBadEvent, Preloaded, Transaction
from headwater.state.definitions import Collection, StateDefinition, StateHolder, define_state
from headwater.state.tables import OnBatch, OnChange, StateTable

T = TypeVar("T")

log = logging.getLogger(__name__)

# The attributes of a StreamDB, which cannot be names of collections.
RESERVED = frozenset(
    {
        "action",
        "await_txid",
        "changes",
        "close",
        "counts",
        "declared",
        "definition",
        "error",
        "events",
        "offset",
        "on_batch",
        "on_change",
        "position",
        "preload",
        "publish_snapshot",
        "reading",
        "save_checkpoint",
        "stream",
        "table",
        "transaction",
        "txid",
        "up_to_date",
    }
)
EVENTS = EventDecoder(msgspec.Raw)
_NO_LOCK = contextlib.nullcontext()


class FollowSettings(msgspec.Struct, frozen=True, kw_only=True):
    live: LiveMode
    checkpoint: Path | None
    checkpoint_every_s: float
    snapshots: bool
    on_error: Callable[[Exception], Any] | None
    at: str | datetime | None  # an offset or a time


class Following:
    """A database, the position of its state, and whether that is the tail of the stream.

    Only at an offset is an append known to be complete. Until then, the events stay staged.
    """

    def __init__(self, url: str, definition: StateDefinition, settings: FollowSettings, database: Database) -> None:
        taken = RESERVED.intersection(definition)
        if taken:
            raise ValueError(f"these names of collections are reserved: {', '.join(sorted(taken))}")
        self.url = urlunsplit(urlsplit(url)._replace(query="", fragment=""))
        self.definition = definition
        self.settings = settings
        self.database = database
        self.position = Position()
        self.up_to_date = False
        self.ready = False  # whether it has been up to date
        self.saved_at: Position | None = None
        self.until: str | None = None  # the offset of the state, if `at` names an offset or a time
        self._fits = True
        if settings.checkpoint is not None:
            for table in database.tables.values():
                table.keep_texts()

    def begin(self, start: Start | None) -> None:
        """Start from a state, or from an empty one."""
        with self.database.lock:
            if start is None:
                start, self.saved_at = Start(Position()), None
            self.database.reset(start.texts)
            self.database.recall(start.txids, start.unfit)
            self.position = start.position

    def apply(self, batch: Batch[Any]) -> None:
        """Stage events, and commit them if they end at an offset. If a bad event raises, nothing is committed.

        After the read began again, they are committed when all of the stream was read.
        """
        database = self.database
        if batch.restarted:
            database.begin_again()
            self.up_to_date = False
            return
        try:
            database.stage(batch.items)
        except InvalidEventError as error:
            error.position, error.url = self.position.after(error.skip), self.url
            raise
        is_end = batch.up_to_date or batch.closed or batch.offset == self.until
        if batch.skip or (database.is_replacing and not is_end):
            return
        with database.lock:
            self.position = batch.position
            self.up_to_date = batch.up_to_date
            database.commit()
            if batch.up_to_date and self.until is None:
                self._become_ready()

    def reach(self) -> None:
        """The stream was read up to `until`. Raises ClientError if it ends before that."""
        if self.until is None:
            return
        with self.database.lock:
            if self.position.offset != self.until and self.until != BEGINNING:
                raise ClientError(f"the stream has no offset {self.until}: it ends at {self.position.offset}")
            self._become_ready()

    def _become_ready(self) -> None:
        if self.ready:
            return
        try:
            self.database.check_fit()
        except SchemaMismatchError:
            self._fits = False
            raise
        self.ready = True

    def check_gone(self, error: HeadwaterError) -> None:
        """The data at the position is gone. Raises the error unless the state can be read again.

        A state that was up to date stays an error if it is of a stream that was deleted, or of data that was lost.
        """
        if self.ready and not isinstance(error, OffsetTrimmedError):
            raise error

    def must_restart(self, error: HeadwaterError) -> bool:
        """Whether a checkpoint or snapshot cannot be used because the stream was deleted and created again, and the
        server answers so with 400."""
        if self.ready or self.position.offset == BEGINNING or not isinstance(error, InvalidOffsetError):
            return False
        log.info("%s was deleted and created again: reading it from the beginning", self.url)
        return True

    # Checkpoints

    def loaded(self) -> Start | None:
        """The content of the checkpoint file, if it is usable."""
        path = self.settings.checkpoint
        if path is None:
            return None
        try:
            data = load(path)
            if data is None:
                return None
            start = decode_checkpoint(data, self.url, self.definition)
        except (OSError, ValueError, TypeError) as error:
            log.warning("the checkpoint %s is not used: %s", path, error)
            return None
        self.saved_at = start.position
        return start

    def checkpoint(self) -> tuple[bytes, Position] | None:
        """The state to save and its position; None if it is already saved."""
        with self.database.lock:
            here = self.position
            if here == self.saved_at or here.offset == BEGINNING or not self._fits:
                return None
            tables = self.database.tables
            texts = {name: dict(table.texts or {}) for name, table in tables.items()}
            unfit = {name: sorted(table.misfits) for name, table in tables.items()}
            start = Start(here, texts, self.database.txids, unfit)
        return encode_checkpoint(self.url, self.definition, start), here

    def snapshot_offset(self) -> str:
        """The offset of a snapshot of the current state."""
        if self.position.offset == BEGINNING or self.position.skip:
            raise ValueError("call preload first: a snapshot needs the state at an offset")
        return self.position.offset


class ReadLock:
    """The lock for reads of a state. It is that of the follower, which may refuse a read."""

    def __init__(self, lock: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock().__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._lock().__exit__(*failure)


class FollowedState(StateHolder, Unpicklable):
    """The interface to the state that both kinds of StreamDB share."""

    error: Exception | None
    definition: StateDefinition
    _database: Database
    _following: Following
    _settings: FollowSettings
    _closing: bool
    _over: bool
    _worker: object | None  # the task or thread that follows the stream
    _process: int  # the process of the worker

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> StateTable[Any]:
            if "_process" in self.__dict__:
                self._check_process()
            try:
                return self.__dict__["_database"].tables[name]
            except KeyError:
                raise AttributeError(f"no collection is called {name!r}") from None

    def table(self, collection: Collection[T]) -> StateTable[T]:
        """Return a collection by its definition. Unlike `db.name`, it is typed for type checkers."""
        self._check_process()
        for table in self._database.tables.values():
            if table.definition is collection:
                return table
        raise KeyError(f"{collection!r} is not a part of this state")

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """Freeze the state in a `with` block, for consistent reads, for example of several collections.

        No changes are applied meanwhile, so keep the block short.
        """
        return self._database.read_lock

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        """Call a function for every change of any collection, in the thread or task that follows the stream.

        Everything that arrived with the change is already visible. Call the returned function to stop.
        """
        self._check_process()
        return self._database.on_change(callback)

    def on_batch(self, callback: OnBatch) -> Callable[[], None]:
        """Call a function with the list of all changes that became visible in one step, of one or more appends.

        `offset` is the position after them. Call the returned function to stop.
        """
        self._check_process()
        return self._database.on_batch(callback)

    @property
    def position(self) -> Position:
        """The offset of the state: everything before it is applied."""
        self._check_process()
        return self._following.position

    @property
    def offset(self) -> str:
        return self.position.offset

    @property
    def up_to_date(self) -> bool:
        """Whether the state was that of the tail of the stream at the last response."""
        self._check_process()
        return self._following.up_to_date

    @property
    def counts(self) -> Counts:
        self._check_process()
        return self._database.counts

    def _loaded(self) -> Preloaded:
        with self._database.lock:
            return self._database.loaded()

    def _checkpoint(self) -> tuple[Path, bytes, Position] | None:
        """The file, the state to save and its position; None if there is nothing new to save."""
        path = self._settings.checkpoint
        if path is None:
            raise ValueError("this database has no checkpoint file")
        self._check_process()
        checkpoint = self._following.checkpoint()
        return None if checkpoint is None else (path, *checkpoint)

    @contextlib.contextmanager
    def _new_transaction(self) -> Iterator[Transaction]:
        self._check()
        if self._worker is None:
            raise ClientError("call preload first: the database does not follow the stream yet")
        transaction = self._database.begin(uuid.uuid4().hex)
        try:
            yield transaction
        finally:
            self._database.settle(transaction.txid)

    def _is_inherited(self) -> bool:
        """Whether the process was forked after `preload`."""
        return self._worker is not None and self._process != forking.process()

    def _check_process(self) -> None:
        """Raise an error if the state is followed in the parent process, so that it is out of date in this one."""
        if self._is_inherited() and not self._over:
            raise ForkedError(
                f"this {type(self).__name__} follows {self._following.url} in the parent process; "
                "make one in this process and call its preload"
            )

    def _lock_to_read(self) -> contextlib.AbstractContextManager[Any]:
        self._check_process()
        if self._worker is None:
            raise ClientError("call preload first: the database has not read the stream yet")
        # The whole stream was read before the fork: nothing changes the state, and a lost thread may hold the lock.
        return _NO_LOCK if self._is_inherited() else self._database.lock

    def _is_over(self) -> bool:
        return self._closing or self._over

    def _check(self) -> None:
        """Raise an error if waiting is pointless, because the database failed, is closed or does not follow."""
        self._check_process()
        if self.error is not None:
            raise self.error
        if self._closing:
            raise ClientError("the database is closed")
        if self._over:
            raise ClientError(
                "the stream is not followed any more: it is closed, `live` is False, or the state is `at` an offset"
            )


def definition_of(kind: type[StateHolder], definition: StateDefinition | None) -> StateDefinition:
    """The state of a database: as it was passed, or of the collections that its class has as attributes."""
    declared = kind.declared()
    if definition is None:
        if not declared:
            raise TypeError("pass the definition of a state, or use a subclass with collections as attributes")
        return define_state(declared)
    if declared:
        raise TypeError(f"{kind.__name__} has collections as attributes, so it takes no definition of a state")
    return definition


def settings_of(
    live: LiveMode,
    checkpoint: str | Path | None,
    checkpoint_every_s: float,
    snapshots: bool,
    on_error: Callable[[Exception], Any] | None,
    at: str | datetime | None = None,
) -> FollowSettings:
    if at is not None:
        _check_at(at, live, checkpoint)
    return FollowSettings(
        at=at,
        live=live if at is None else False,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every_s=checkpoint_every_s,
        snapshots=snapshots,
        on_error=on_error,
    )


def _check_at(at: str | datetime, live: LiveMode, checkpoint: str | Path | None) -> None:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError("a time needs a time zone")
    elif not isinstance(at, str):
        raise TypeError(f"`at` is an offset or a datetime, not {at!r:.80}")
    elif at == NOW:
        raise ValueError("`at` is an offset or a datetime; for the current state pass live=False instead")
    if checkpoint is not None:
        raise ValueError("a state `at` an offset has no checkpoint file: a checkpoint is for the current state")
    if isinstance(live, str):
        raise ValueError(f"a state `at` an offset does not change, so it cannot be followed with live={live!r}")


def database_of(
    definition: StateDefinition,
    on_bad_event: OnBadEvent,
    txids_kept: int,
    lock: contextlib.AbstractContextManager[Any] | None = None,
    read_lock: ReadLock | None = None,
) -> Database:
    if txids_kept < 1:
        raise ValueError(f"txids_kept must be at least 1, got {txids_kept}")
    return Database(definition, on_bad_event=on_bad_event, txids_kept=txids_kept, lock=lock, read_lock=read_lock)
