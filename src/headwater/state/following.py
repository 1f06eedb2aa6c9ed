"""What both shells of a StreamDB share: settings, the position, and what to make of a failure to begin."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from headwater.client.effects import Batch
from headwater.client.reading import LiveMode
from headwater.errors import ClientError, HeadwaterError, InvalidEventError, InvalidOffsetError, OffsetGoneError
from headwater.positions import BEGINNING, Position
from headwater.state.bootstrap import Start, decode_checkpoint, encode_checkpoint
from headwater.state.checkpoints import load
from headwater.state.database import Counts, Database, OnBadEvent, Transaction
from headwater.state.definitions import Collection, StateDefinition
from headwater.state.events import EventDecoder
from headwater.state.tables import OnBatch, OnChange, Table

T = TypeVar("T")

log = logging.getLogger(__name__)

# What a StreamDB calls its own, so that no collection can.
RESERVED = frozenset(
    {
        "action",
        "await_txid",
        "changes",
        "close",
        "counts",
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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    live: LiveMode
    checkpoint: Path | None
    checkpoint_every_s: float
    snapshots: bool
    on_error: Callable[[Exception], Any] | None


class Following:
    """A database, the position that its state is at, and whether that is the end of the stream.

    Only where an answer ends at an offset is an append certainly whole. Until then what was read is staged.
    """

    def __init__(self, url: str, definition: StateDefinition, settings: Settings, database: Database) -> None:
        taken = RESERVED.intersection(definition)
        if taken:
            raise ValueError(f"these names of collections are taken: {', '.join(sorted(taken))}")
        self.url = urlunsplit(urlsplit(url)._replace(query="", fragment=""))
        self.definition = definition
        self.settings = settings
        self.database = database
        self.position = Position()
        self.up_to_date = False
        self.ready = False  # has it been up to date?
        self.saved_at: Position | None = None
        if settings.checkpoint is not None:
            for table in database.tables.values():
                table.keep_texts()

    def begin(self, start: Start | None) -> None:
        """Take a state to start from, or none."""
        with self.database.lock:
            if start is None:
                start, self.saved_at = Start(Position()), None
            self.database.reset(start.texts)
            self.database.recall(start.txids)
            self.position = start.position

    def apply(self, batch: Batch[Any]) -> None:
        """Take what was read, and show it if it ends at an offset. If a bad event is raised nothing more is shown."""
        database = self.database
        try:
            database.stage(batch.items)
        except InvalidEventError as error:
            error.position, error.url = self.position.after(error.skip), self.url
            raise
        if batch.skip:
            return
        with database.lock:
            self.position = batch.position
            self.up_to_date = batch.up_to_date
            self.ready = self.ready or batch.up_to_date
            database.commit()

    def must_restart(self, error: HeadwaterError) -> bool:
        """Whether a checkpoint or snapshot cannot be used because the stream was deleted and created again."""
        is_another = isinstance(error, (OffsetGoneError, InvalidOffsetError))
        if self.ready or self.position.offset == BEGINNING or not is_another:
            return False
        log.info("%s is another stream than the one remembered: reading it from its beginning", self.url)
        return True

    # Checkpoints

    def loaded(self) -> Start | None:
        """What the checkpoint file has, if it can be used."""
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
        """What to save now and the position it is of; None if that is saved already."""
        with self.database.lock:
            here = self.position
            if here == self.saved_at or here.offset == BEGINNING:
                return None
            texts = {name: dict(table.texts or {}) for name, table in self.database.tables.items()}
            start = Start(here, texts, self.database.txids)
        return encode_checkpoint(self.url, self.definition, start), here

    def snapshot_offset(self) -> str:
        """The offset that a snapshot would be of now."""
        if self.position.offset == BEGINNING or self.position.skip:
            raise ValueError("a snapshot is of the state at an offset: preload first")
        return self.position.offset


class FollowedState:
    """What both kinds of StreamDB show of the state, however they follow the stream."""

    error: Exception | None
    definition: StateDefinition
    _database: Database
    _following: Following
    _settings: Settings
    _closing: bool
    _over: bool
    _worker: object | None  # the task or thread that follows the stream

    def __getattr__(self, name: str) -> Table[Any]:
        try:
            return self.__dict__["_database"].tables[name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no collection is called {name!r}") from None

    def table(self, collection: Collection[T]) -> Table[T]:
        """A collection by its definition, which a type checker can follow."""
        for table in self._database.tables.values():
            if table.definition is collection:
                return table
        raise KeyError(f"{collection!r} is not a part of this state")

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """Hold the state still: what is read in a `with` block, from several collections for example, is of one moment.

        The stream is not followed meanwhile, so keep it short.
        """
        return self._database.lock

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        """Call back for every change of any collection, where the stream is followed; what is returned ends that.

        All that arrived with a change is visible by then.
        """
        return self._database.on_change(callback)

    def on_batch(self, callback: OnBatch) -> Callable[[], None]:
        """Call back with the list of changes of all collections that became visible in one step, one append or more.

        What is returned ends that. `offset` is the position after them.
        """
        return self._database.on_batch(callback)

    @property
    def position(self) -> Position:
        """All before it is in the state."""
        return self._following.position

    @property
    def offset(self) -> str:
        return self.position.offset

    @property
    def up_to_date(self) -> bool:
        """Whether the state was that of the end of the stream when something last arrived."""
        return self._following.up_to_date

    @property
    def counts(self) -> Counts:
        return self._database.counts

    def _checkpoint(self) -> tuple[Path, bytes, Position] | None:
        """Where to save what, and the position it is of; None if there is nothing new to save."""
        path = self._settings.checkpoint
        if path is None:
            raise ValueError("this database has no checkpoint file")
        found = self._following.checkpoint()
        return None if found is None else (path, *found)

    @contextlib.contextmanager
    def _new_transaction(self) -> Iterator[Transaction]:
        self._check()
        if self._worker is None:
            raise ClientError("preload the database first: nothing would ever come back through the stream")
        transaction = self._database.begin(uuid.uuid4().hex)
        try:
            yield transaction
        finally:
            self._database.settle(transaction.txid)

    def _is_over(self) -> bool:
        return self._closing or self._over

    def _check(self) -> None:
        """Raise what makes waiting vain."""
        if self.error is not None:
            raise self.error
        if self._closing:
            raise ClientError("the database is closed")
        if self._over:
            raise ClientError("the stream is not followed any more: it is closed, or `live` is False")


def settings_of(
    live: LiveMode,
    checkpoint: str | Path | None,
    checkpoint_every_s: float,
    snapshots: bool,
    on_error: Callable[[Exception], Any] | None,
) -> Settings:
    return Settings(
        live=live,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every_s=checkpoint_every_s,
        snapshots=snapshots,
        on_error=on_error,
    )


def database_of(definition: StateDefinition, on_bad_event: OnBadEvent, txids_kept: int, lock: Any = None) -> Database:
    if txids_kept < 1:
        raise ValueError(f"txids_kept must be at least 1, got {txids_kept}")
    return Database(definition, on_bad_event=on_bad_event, txids_kept=txids_kept, lock=lock)
