# Made by `python -m tools.twins` from aio/streamdb.py: change that one.
"""The current state of a stream, blocking."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from headwater import limits
from headwater.client import ProducerTuple, Reader, Stream
from headwater.client.effects import RunningFlow
from headwater.client.reading import LiveMode
from headwater.errors import HeadwaterError
from headwater.state import flows
from headwater.state.database import LOG, OnBadEvent, Preloaded, Transaction
from headwater.state.definitions import StateDefinition
from headwater.state.following import EVENTS, Following, ReadLock, database_of, definition_of, settings_of
from headwater.state.sync.background import Background

R = TypeVar("R")

log = logging.getLogger(__name__)


class StreamDB(Background):
    """The current state of a stream of state events: collections as mappings that stay current.

    `preload` reads up to the tail of the stream, starting from the checkpoint file or a snapshot if there is one. After
    that, changes are applied as they arrive (unless `live` is False). Collections are attributes: `db.users["1"]`.
    A subclass may have its collections as attributes instead of a definition; type checkers then know their types.
    With `at`, an offset or a time, it is the state that the stream had there, and does not change.
    After `fork()`, a child process needs a database of its own: nothing keeps the state of the parent's current there.

    ```python
    users = Collection("user", dict, indexes=("team",))
    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("people")
        stream.create()
        with StreamDB(stream, define_state({"users": users})) as db:
            db.preload()
            stream.append(users.insert({"id": "1", "team": "blue"}, txid="tx-1"))
            db.await_txid("tx-1")
            assert list(db.users.by(team="blue")) == ["1"]
    ```
    """

    def __init__(
        self,
        stream: Stream,
        definition: StateDefinition | None = None,
        *,
        live: LiveMode = True,
        at: str | datetime | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every_s: float = limits.STATE_CHECKPOINT_EVERY_S,
        snapshots: bool = True,
        on_bad_event: OnBadEvent = LOG,
        on_error: Callable[[Exception], Any] | None = None,
        txids_kept: int = limits.STATE_TXIDS_KEPT,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.definition = definition = definition_of(type(self), definition)
        settings = settings_of(live, checkpoint, checkpoint_every_s, snapshots, on_error, at)
        self._database = database_of(definition, on_bad_event, txids_kept, self._lock, ReadLock(self._lock_to_read))
        self._following = Following(stream.url, definition, settings, self._database)
        self._settings = settings
        self._reader: Reader[Any] | None = None
        self._closing = False
        self._over = False
        self._saved_s = time.monotonic()
        self.error = None

    def preload(self, timeout_s: float | None = None) -> Preloaded:
        """Start to follow the stream, and wait until the state is up to date. Returns what was read and what did not
        match the schemas.

        Raises the error if that fails. It is a SchemaMismatchError if most of the stream does not match the schemas,
        unless `on_bad_event` is "skip" or a function.
        """
        self._begin(self._run)
        self._wait(lambda: self._following.ready or self._is_over(), timeout_s, "not up to date")
        if not self._following.ready or self.error is not None:
            self._check()
        return self._loaded()

    def await_txid(self, txid: str, timeout_s: float = limits.STATE_AWAIT_TXID_S) -> None:
        """Wait until an event with this transaction id is applied."""
        self._check_process()
        seen = self._database.has_seen
        with self._database.expecting(txid):
            self._wait(
                lambda: seen(txid) or self.error is not None or self._is_over(),
                timeout_s,
                f"transaction {txid} did not arrive",
            )
            if not seen(txid):
                self._check()

    @contextlib.contextmanager
    def transaction(self, timeout_s: float = limits.STATE_TRANSACTION_S) -> Iterator[Transaction]:
        """Make optimistic changes: they are visible at once, and appended in one request at the end of the block.

        The block ends when they have come back through the stream. If anything fails, they are rolled back. After a
        TimeoutError they may still arrive through the stream.
        """
        with self._new_transaction() as transaction:
            yield transaction
            self._commit(transaction, None, timeout_s)

    def action(
        self,
        optimistic: Callable[..., Any],
        commit: Callable[..., Any] | None = None,
        *,
        timeout_s: float = limits.STATE_TRANSACTION_S,
    ) -> Callable[..., None]:
        """Return a function that makes an optimistic change and has it written to the stream.

        `optimistic(transaction, ...)` makes the changes that are visible at once. `commit(transaction, ...)` has them
        written to the stream with `transaction.txid`, for example by a backend; without it the events are appended
        directly. The function returns when they have come back through the stream. If it fails, they are rolled back.
        """

        def act(*args: Any, **options: Any) -> None:
            with self._new_transaction() as transaction:
                optimistic(transaction, *args, **options)
                write = None if commit is None else partial(commit, transaction, *args, **options)
                self._commit(transaction, write, timeout_s)

        return act

    def _commit(self, transaction: Transaction, write: Callable[[], Any] | None, timeout_s: float) -> None:
        with self._database.expecting(transaction.txid):
            if write is not None:
                self._call(write)
            elif transaction.events:  # in one request, which can be retried because it is numbered
                self.stream.append_many(transaction.events, producer=ProducerTuple(transaction.txid, 0, 0))
            if transaction.events:
                self.await_txid(transaction.txid, timeout_s)

    def save_checkpoint(self) -> bool:
        """Save the state to the checkpoint file now; False if there is nothing new to save."""
        checkpoint = self._checkpoint()
        if checkpoint is None:
            return False
        path, data, position = checkpoint
        self._save(path, data)
        self._following.saved_at = position
        self._saved_s = time.monotonic()
        return True

    def publish_snapshot(self) -> Stream:
        """Write the state of the stream, with all its types, as a snapshot from which other databases can start.

        It is computed from the newest snapshot and the events after it, or from the whole stream, so that it has the
        values as they were written, not as the schemas decode them. An existing snapshot is not changed.
        """
        self._check_process()
        return publish_snapshot(self.stream, self._following.snapshot_offset())

    def close(self) -> None:
        """Stop following the stream, and save a last checkpoint if there is a checkpoint file.

        In a process that was forked after `preload` it has no effect: the parent follows the stream.
        """
        if self._is_inherited():
            return
        with self._database.lock:
            self._closing = True
        self._notify()
        if self._reader is not None:
            self._reader.close()
        self._end()
        if self._settings.checkpoint is not None:
            self.save_checkpoint()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # In the background

    def _run(self) -> None:
        try:
            _drive(flows.run(self._following, self.stream.path), self._perform)
        except Exception as error:  # noqa: BLE001  # raised by the next call
            self.error = error
            self._notify()
            if self._settings.on_error is not None:
                self._settings.on_error(error)
        finally:
            self._over = True
            self._notify()

    def _follow(self) -> bool:
        following = self._following
        reader = self.stream.read(
            type=EVENTS,
            offset=following.position,
            until=following.until,
            live=self._settings.live,
            on_gone=following.check_gone,
        )
        self._reader = reader
        if self._closing:  # either `close` sees the reader, or this sees `closed`
            return False
        with reader:
            for batch in reader.batches():
                following.apply(batch)
                self._notify()
                self._maybe_save()
        return not self._closing

    def _maybe_save(self) -> None:
        """Save a checkpoint if it is due. A failure is logged and retried, because the state does not depend on it."""
        if self._settings.checkpoint is None:
            return
        if time.monotonic() - self._saved_s >= self._settings.checkpoint_every_s:
            self._saved_s = time.monotonic()
            try:
                self.save_checkpoint()
            except OSError as error:
                log.warning("the checkpoint %s was not saved: %s", self._settings.checkpoint, error)

    def _perform(self, wish: flows.Wish) -> Any:
        return self._follow() if isinstance(wish, flows.FollowStream) else _perform(self.stream, wish)


def publish_snapshot(stream: Stream, offset: str) -> Stream:
    """Write the state of a stream at an offset as a snapshot, unless it exists."""
    path = _drive(flows.publish_snapshot(stream.path, offset), partial(_perform, stream))
    return stream.client.stream(path)


def _drive(flow: flows.Flow[R], perform: Callable[..., Any]) -> R:
    running_flow: RunningFlow[R] = RunningFlow(flow)  # type: ignore[arg-type]
    wish: Any = running_flow.go()
    while wish is not None:
        outcome: Any
        try:
            outcome = perform(wish)
        except HeadwaterError as error:
            outcome = error
        wish = running_flow.go(outcome)
    return running_flow.result


def _perform(stream: Stream, wish: Any) -> Any:
    """Perform the requests of a flow, except following the stream."""
    if isinstance(wish, flows.ListStreams):
        return list(stream.client.list(wish.prefix))
    named = stream if wish.path is None else stream.client.stream(wish.path)
    if isinstance(wish, flows.Head):
        return named.head()
    if isinstance(wish, flows.OffsetAt):
        return named.offset_at(wish.time)
    if isinstance(wish, flows.ReadEvents):
        with named.read(type=EVENTS, offset=wish.offset, until=wish.until) as reader:
            for batch in reader.batches():
                wish.take(batch.items)
        return None
    named.create()
    with named.producer("snapshot", auto_claim=True) as producer:
        for event in wish.events:
            producer.append(event)
        return producer.close_stream()  # by the producer, so that a run that was fenced off cannot close it
