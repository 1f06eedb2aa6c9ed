"""The heart of a StreamDB: events in, current collections out. No input, no output, no clock.

What the stream says is in the rows. Optimistic changes lie over them until their transaction comes back through the
stream or fails. A position goes with the state: the offset, and the messages after it, that it is the state at.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from headwater.errors import InvalidEventError
from headwater.state.definitions import StateDefinition
from headwater.state.events import BadEvent, ChangeEvent, ControlEvent
from headwater.state.tables import GONE, OnChange, Table

log = logging.getLogger(__name__)

OnBadEvent: TypeAlias = str | Callable[[BadEvent], Any]
RAISE, SKIP = "raise", "skip"


class Counts(msgspec.Struct):
    """What went through a database since it was opened."""

    events: int = 0
    controls: int = 0
    ignored: int = 0  # changes of types that no collection has
    bad: int = 0


class Transaction:
    """Changes that are shown at once and become real when the stream has them."""

    def __init__(self, database: Database, txid: str) -> None:
        self.txid = txid
        self.events: list[ChangeEvent[Any]] = []
        self._database = database

    def __getattr__(self, name: str) -> TransactionTable:
        tables = self.__dict__["_database"].tables
        if name not in tables:
            raise AttributeError(f"no collection is called {name!r}")
        return TransactionTable(self, tables[name])

    __getitem__ = __getattr__


class TransactionTable:
    """A collection inside a transaction: what is written is shown at once."""

    def __init__(self, transaction: Transaction, table: Table[Any]) -> None:
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
        value = GONE if gone else self._table.definition.checked(event.value)
        self._transaction._database.show_optimistic(self._transaction, self._table, event.key, value)
        self._transaction.events.append(event)


class Database:
    """Collections and what keeps them current, whoever reads the stream."""

    def __init__(
        self,
        definition: StateDefinition,
        *,
        on_bad_event: OnBadEvent = RAISE,
        txids_kept: int,
        lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        if not callable(on_bad_event) and on_bad_event not in (RAISE, SKIP):
            raise ValueError(f"on_bad_event is 'raise', 'skip' or a function, not {on_bad_event!r}")
        self.lock = lock or contextlib.nullcontext()
        self.tables: dict[str, Table[Any]] = {name: Table(name, made, self.lock) for name, made in definition.items()}
        self.counts = Counts()
        self.in_snapshot = False
        self._by_type = {table.definition.type: table for table in self.tables.values()}
        self._on_bad_event = on_bad_event
        self._txids: OrderedDict[str, None] = OrderedDict()
        self._txids_kept = txids_kept
        self._expected: Counter[str] = Counter()
        self._arrived: set[str] = set()
        self._transactions: dict[str, Transaction] = {}

    # The stream

    def apply(self, events: Sequence[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        """Apply what was read. InvalidEventError if a bad event is to be raised: `skip` says how many precede it."""
        txids: dict[str, None] = {}
        by_type = self._by_type
        applied = 0
        with self.lock:
            try:
                for event in events:
                    if type(event) is ChangeEvent:
                        table = by_type.get(event.type)
                        if table is not None:
                            self._change(table, event)
                        else:
                            self.counts.ignored += 1
                        if event.headers.txid is not UNSET:
                            txids[str(event.headers.txid)] = None
                    elif type(event) is ControlEvent:
                        self._control(event)
                    else:
                        self._bad(event)  # type: ignore[arg-type]
                    applied += 1
            except InvalidEventError as error:
                error.skip = applied
                raise
            finally:
                self.counts.events += applied
                self._remember(txids)

    def _change(self, table: Table[Any], event: ChangeEvent[Any]) -> None:
        if event.headers.operation == "delete":
            table.put(event.key, GONE)
            return
        try:
            value = table.decode(event.value)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            reason = "no value" if event.value is UNSET else str(error)
            self._bad(BadEvent(_plain(event), f"{event.headers.operation} of {event.type} {event.key!r}: {reason}"))
        else:
            table.put(event.key, value, event.value)

    def _control(self, event: ControlEvent) -> None:
        self.counts.controls += 1
        control = event.headers.control
        if control == "reset":
            self.reset()
        elif control == "snapshot-start":
            if self.in_snapshot:
                log.warning("a snapshot starts inside a snapshot")
            self.in_snapshot = True
        elif control == "snapshot-end":
            if not self.in_snapshot:
                log.warning("a snapshot ends that never started")
            self.in_snapshot = False

    def _bad(self, event: BadEvent) -> None:
        """As the policy says: the state is as if the event were not there."""
        self.counts.bad += 1
        if callable(self._on_bad_event):
            self._on_bad_event(event)
        elif self._on_bad_event == RAISE:
            raise InvalidEventError(event.reason)

    def reset(self, texts: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        """Begin anew, with nothing or with the rows of each collection as JSON."""
        with self.lock:
            self.in_snapshot = False
            for name, table in self.tables.items():
                table.reset((texts or {}).get(name))

    # Transactions

    def has_seen(self, txid: str) -> bool:
        return txid in self._txids or txid in self._arrived

    @contextlib.contextmanager
    def expecting(self, txid: str) -> Iterator[None]:
        """While someone waits for a transaction it is not forgotten, however many others arrive."""
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
        """Those seen lately, oldest first."""
        return list(self._txids)

    def recall(self, txids: Sequence[str]) -> None:
        """Remember what was seen before a restart."""
        self._remember(dict.fromkeys(txids))

    def _remember(self, txids: dict[str, None]) -> None:
        for txid in txids:
            self._txids[txid] = None
            self._txids.move_to_end(txid)
            if txid in self._expected:
                self._arrived.add(txid)
            if txid in self._transactions:
                self.settle(txid)
        while len(self._txids) > self._txids_kept:
            self._txids.popitem(last=False)

    def begin(self, txid: str) -> Transaction:
        transaction = self._transactions[txid] = Transaction(self, txid)
        return transaction

    def show_optimistic(self, transaction: Transaction, table: Table[Any], key: str, value: Any) -> None:
        with self.lock:
            if self._transactions.get(transaction.txid) is not transaction:
                raise RuntimeError("the transaction is over: it came back through the stream, or failed")
            table.show_optimistic(transaction, key, value)

    def settle(self, txid: str) -> None:
        """A transaction came back through the stream, or failed: its optimistic changes are no longer shown."""
        transaction = self._transactions.pop(txid, None)
        if transaction is not None:
            with self.lock:
                for table in self.tables.values():
                    table.remove_optimistic(transaction)

    # Everything at once

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        ends = [table.on_change(callback) for table in self.tables.values()]

        def end() -> None:
            for each in ends:
                each()

        return end


def _plain(event: ChangeEvent[Any]) -> Any:
    """The event as it was on the stream."""
    return msgspec.json.decode(msgspec.json.encode(event))
