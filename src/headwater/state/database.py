"""The core of a StreamDB: it applies events to collections. It has no I/O and no clock.

Events are staged first: decoded and checked, but not visible. `commit` makes everything staged visible in one step and
then calls the watchers. The rows hold the state of the stream. Optimistic changes hide the rows until their transaction
comes back through the stream or fails. The state has a position: the offset that it is the state of.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET

from headwater.errors import InvalidEventError, SchemaMismatchError
from headwater.positions import Position
from headwater.protocol.state.events import BadEvent, ChangeEvent, ChangeHeaders, ControlEvent, plain
from headwater.state.definitions import Collection, StateDefinition
from headwater.state.tables import GONE, OnBatch, OnChange, StateChange, StateTable, call_watcher

log = logging.getLogger(__name__)

OnBadEvent: TypeAlias = str | Callable[[BadEvent], Any]
LOG, RAISE, SKIP = "log", "raise", "skip"


class Counts(msgspec.Struct):
    """Counts since a database was opened."""

    events: int = 0
    controls: int = 0
    ignored: int = 0  # changes of types without a collection, and unknown controls
    bad: int = 0


class Preloaded(Counts):
    """What `preload` read. `unfit` counts the keys of each collection whose newest value does not match the schema:
    they have an older value, or are missing."""

    rows: dict[str, int] = {}
    unfit: dict[str, int] = {}


class Transaction:
    """Optimistic changes: visible at once, and confirmed when they come back through the stream.

    ```python
    users = Collection("user", dict)
    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("team")
        stream.create()
        with StreamDB(stream, define_state({"users": users})) as db:
            db.preload()
            with db.transaction() as transaction:
                transaction.users.insert({"id": "1", "name": "Ann"})
            assert "1" in db.users
    ```
    """

    def __init__(self, database: Database, txid: str) -> None:
        self.txid = txid
        self.events: list[ChangeEvent[Any]] = []
        self._database = database

    def table(self, collection: Collection[Any]) -> TransactionTable:
        """Return a collection by its definition."""
        for table in self._database.tables.values():
            if table.definition is collection:
                return TransactionTable(self, table)
        raise KeyError(f"{collection!r} is not a part of this state")

    def __getitem__(self, name: str) -> TransactionTable:
        return TransactionTable(self, self._database.tables[name])

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> TransactionTable:
            tables = self.__dict__["_database"].tables
            if name not in tables:
                raise AttributeError(f"no collection is called {name!r}")
            return TransactionTable(self, tables[name])


class TransactionTable:
    """A collection inside a transaction. Changes are visible at once."""

    def __init__(self, transaction: Transaction, table: StateTable[Any]) -> None:
        self._transaction = transaction
        self._table = table

    def insert(self, value: Any, *, key: str | None = None) -> None:
        self._note(self._table.definition.insert(value, key=key, txid=self._transaction.txid))

    def update(self, value: Any, *, key: str | None = None) -> None:
        self._note(self._table.definition.update(value, key=key, txid=self._transaction.txid))

    def upsert(self, value: Any, *, key: str | None = None) -> None:
        self._note(self._table.definition.upsert(value, key=key, txid=self._transaction.txid))

    def delete(self, key: str) -> None:
        self._note(self._table.definition.delete(key, txid=self._transaction.txid))

    def _note(self, event: ChangeEvent[Any]) -> None:
        gone = event.headers.operation == "delete"
        value = GONE if gone else self._table.definition.checked(event.value, key=event.key)
        self._transaction._database.show_optimistic(self._transaction, self._table, event.key, value)
        self._transaction.events.append(event)


class _Stage:
    """Data that was read and is not visible yet. Changes of tables without watchers are in the tables, by key."""

    def __init__(self, *, replaces: bool = False) -> None:
        self.replaces = replaces  # the whole state, so no single steps are kept
        self.is_reset = False
        self.steps: list[tuple[StateTable[Any], str, Any, Any, ChangeHeaders]] = []
        self.txids: dict[str, None] = {}
        self.events = self.controls = self.ignored = 0
        self.bad: list[str] = []


class Database:
    """The collections, and the code that applies events to them. The caller reads the stream."""

    def __init__(
        self,
        definition: StateDefinition,
        *,
        on_bad_event: OnBadEvent = LOG,
        txids_kept: int,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        read_lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        if not callable(on_bad_event) and on_bad_event not in (LOG, RAISE, SKIP):
            raise ValueError(f"on_bad_event is 'log', 'raise', 'skip' or a function, not {on_bad_event!r}")
        self.lock = lock or contextlib.nullcontext()
        self.read_lock = read_lock or self.lock  # it may refuse a read
        self._changes: list[StateChange[Any]] = []
        self.tables: dict[str, StateTable[Any]] = {
            name: StateTable(name, made, self.read_lock, self._changes) for name, made in definition.items()
        }
        self.counts = Counts()
        self._not_events = 0  # messages
        self._in_snapshot = False
        self._stage = _Stage()
        self._watchers: list[OnBatch] = []
        self._is_telling = False
        self._by_type = {table.definition.type: table for table in self.tables.values()}
        self._on_bad_event = on_bad_event
        self._txids: OrderedDict[str, None] = OrderedDict()
        self._txids_kept = txids_kept
        self._expected: Counter[str] = Counter()
        self._arrived: set[str] = set()
        self._transactions: dict[str, Transaction] = {}

    # The stream

    def apply(self, events: Sequence[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        """Apply events that belong together: all of them or, if a bad event raises, none."""
        self.stage(events)
        self.commit()

    def stage(self, events: Sequence[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        """Stage events, which become visible with the next commit.

        Raises InvalidEventError for a bad event if `on_bad_event` is "raise". Its `skip` is the number of events before
        it; nothing stays staged.
        """
        stage, by_type = self._stage, self._by_type
        number = 0
        try:
            for number, event in enumerate(events):  # noqa: B007  # used if an event is refused
                if type(event) is ChangeEvent:
                    table = by_type.get(event.type)
                    if table is not None:
                        self._change(table, event)
                    else:
                        stage.ignored += 1
                    txid = event.headers.txid
                    if txid is not UNSET:
                        stage.txids[txid] = None
                elif type(event) is ControlEvent:
                    self._control(event)
                else:
                    self._not_events += 1
                    self._bad(event)  # type: ignore[arg-type]
        except BaseException as error:
            if isinstance(error, InvalidEventError):
                error.position = Position(skip=stage.events + number)
            self.unstage()
            raise
        stage.events += len(events)
        if stage.bad:
            log.warning("%d bad events were left out, the first: %s", len(stage.bad), stage.bad[0])
            stage.bad.clear()

    def unstage(self) -> None:
        """Drop everything that is staged."""
        self._stage = _Stage()
        for table in self.tables.values():
            table.unstage()

    def begin_again(self) -> None:
        """The stream is read from its beginning. The state stays as it is until the next commit. Then it becomes what
        was staged since, and the watchers are told the differences."""
        with self.lock:
            self.unstage()
            self._in_snapshot = False
            self._stage = _Stage(replaces=True)
            for table in self.tables.values():
                table.misfits.clear()

    @property
    def is_replacing(self) -> bool:
        """Whether the next commit replaces the state."""
        return self._stage.replaces

    def commit(self) -> None:
        """Make everything staged visible, and call the watchers."""
        with self.lock:
            stage, self._stage = self._stage, _Stage()
            if stage.is_reset and not stage.replaces:
                self._reset_tables()
            for table in self.tables.values():
                if stage.replaces:
                    table.replace()
                else:
                    table.commit()
            for table, key, value, text, headers in stage.steps:
                table.put(key, value, text, headers)
            self.counts.events += stage.events
            self.counts.controls += stage.controls
            self.counts.ignored += stage.ignored
            self._remember(stage.txids)
            self._tell()

    def _change(self, table: StateTable[Any], event: ChangeEvent[Any]) -> None:
        key, text, headers = event.key, event.value, event.headers
        value: Any = GONE
        if headers.operation != "delete":
            try:
                value = table.definition.row(key, text)  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001  # a schema may raise anything for a value that does not match
                reason = str(error) or type(error).__name__
                table.misfit(key, f"{headers.operation} of {event.type} {key!r}: {reason}")
                self._bad(BadEvent(_plain(event), f"{headers.operation} of {event.type} {key!r}: {reason}"))
                return
        if table.misfits:
            table.misfits.discard(key)
        if table.is_watched and not self._stage.replaces:
            self._stage.steps.append((table, key, value, text, headers))
        else:
            table.stage(key, value, text)

    def _control(self, event: ControlEvent) -> None:
        self._stage.controls += 1
        control = event.headers.control
        if control == "reset":
            self._in_snapshot = False
            self._stage.is_reset = True
            self._stage.steps.clear()
            for table in self.tables.values():
                table.unstage()
                table.misfits.clear()
        elif control == "snapshot-start":
            if self._in_snapshot:
                log.warning("a snapshot starts inside a snapshot")
            self._in_snapshot = True
        elif control == "snapshot-end":
            if not self._in_snapshot:
                log.warning("a snapshot ends that never started")
            self._in_snapshot = False
        elif control != "up-to-date":
            self._stage.ignored += 1

    def _bad(self, event: BadEvent) -> None:
        """Handle a bad event by the policy. It has no effect on the state."""
        self.counts.bad += 1
        if callable(self._on_bad_event):
            self._on_bad_event(event)
        elif self._on_bad_event == RAISE:
            raise InvalidEventError(event.reason)
        elif self._on_bad_event == LOG:
            self._stage.bad.append(event.reason)

    def loaded(self) -> Preloaded:
        """The counts so far, with the rows of each collection and the keys whose newest value does not fit."""
        return Preloaded(
            **msgspec.structs.asdict(self.counts),
            rows={name: table.confirmed_count for name, table in self.tables.items()},
            unfit={name: len(table.misfits) for name, table in self.tables.items()},
        )

    def check_fit(self) -> None:
        """Raise SchemaMismatchError if most of what was read could not be used, unless bad events are left to the user.

        For a collection it counts keys, not events: old events that later ones replaced do no harm.
        """
        if self._on_bad_event != LOG:
            return
        events = self.counts.events
        if self._not_events * 2 > events:
            raise SchemaMismatchError(f"{self._not_events} of {events} messages are not state events")
        for name, table in self.tables.items():
            unfit = len(table.misfits)
            keys = len(table.misfits.union(table.confirmed())) if unfit else 0
            if unfit * 2 > keys:
                raise SchemaMismatchError(
                    f"the newest values of {unfit} of {keys} keys of {name!r} do not match its schema, "
                    f"for example: {table.misfit_reason}"
                )
        if events and self.counts.ignored == events:
            types = ", ".join(sorted(self._by_type))
            log.warning("none of %d events has a type of the state: %s", events, types)

    def reset(self, texts: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        """Start again, empty or with the rows of each collection as JSON."""
        with self.lock:
            self.unstage()
            self._in_snapshot = False
            self._reset_tables(texts)
            self._tell()

    def _reset_tables(self, texts: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        for name, table in self.tables.items():
            table.reset((texts or {}).get(name))

    def _tell(self) -> None:
        """Call the watchers for all changes once all are visible. Changes by a callback are reported after them."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._changes:
                changes = self._changes[:]
                self._changes.clear()
                for change in changes:
                    self.tables[change.collection].tell(change)
                for watcher in tuple(self._watchers):
                    call_watcher(watcher, changes)
        finally:
            self._is_telling = False

    # Transactions

    def has_seen(self, txid: str) -> bool:
        return txid in self._txids or txid in self._arrived

    @contextlib.contextmanager
    def expecting(self, txid: str) -> Iterator[None]:
        """Keep a transaction id as long as a caller waits for it, however many others arrive."""
        with self.lock:
            self._expected[txid] += 1
        try:
            yield
        finally:
            with self.lock:
                self._expected[txid] -= 1
                if not self._expected[txid]:
                    del self._expected[txid]
                    self._arrived.discard(txid)

    @property
    def txids(self) -> list[str]:
        """The transaction ids seen recently, oldest first."""
        return list(self._txids)

    def recall(self, txids: Sequence[str], unfit: Mapping[str, Sequence[str]]) -> None:
        """Restore the transaction ids that were seen before a restart, and the keys whose values did not fit."""
        self._remember(dict.fromkeys(txids))
        for name, keys in unfit.items():
            for key in keys:
                self.tables[name].misfit(key, f"value of {key!r}: refused before the last checkpoint")

    def _remember(self, txids: dict[str, None]) -> None:
        for txid in txids:
            self._txids[txid] = None
            self._txids.move_to_end(txid)
            if txid in self._expected:
                self._arrived.add(txid)
            if txid in self._transactions:
                self._settle(txid)
        while len(self._txids) > self._txids_kept:
            self._txids.popitem(last=False)

    def begin(self, txid: str) -> Transaction:
        transaction = self._transactions[txid] = Transaction(self, txid)
        return transaction

    def show_optimistic(self, transaction: Transaction, table: StateTable[Any], key: str, value: Any) -> None:
        with self.lock:
            if self._transactions.get(transaction.txid) is not transaction:
                raise RuntimeError("the transaction has ended: it was confirmed through the stream, or failed")
            table.show_optimistic(transaction, key, value)
            self._tell()

    def settle(self, txid: str) -> None:
        """End a transaction that came back through the stream or failed: remove its optimistic changes."""
        with self.lock:
            self._settle(txid)
            self._tell()

    def _settle(self, txid: str) -> None:
        transaction = self._transactions.pop(txid, None)
        if transaction is not None:
            for table in self.tables.values():
                table.remove_optimistic(transaction)

    # The whole state

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        ends = [table.on_change(callback) for table in self.tables.values()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def on_batch(self, callback: OnBatch) -> Callable[[], None]:
        self._watchers.append(callback)
        for table in self.tables.values():
            table.watch()

        def end() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return end


def _plain(event: ChangeEvent[Any]) -> Any:
    """The event as it was in the stream."""
    return plain(msgspec.json.encode(event))
