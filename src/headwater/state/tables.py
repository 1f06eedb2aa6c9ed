"""Collections at run time: rows by key, optimistic changes over them, indexes and watchers."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from headwater.client.arrow import require_pyarrow
from headwater.protocol.state.events import ChangeHeaders
from headwater.state.definitions import Collection
from headwater.state.queries import Query

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Gone:
    """The absence of a value; None is a valid value."""


GONE = _Gone()
_UNHASHABLE = _Gone()


class StateChange(msgspec.Struct, Generic[T], frozen=True):
    """A change of a key: its value and its old value, None if there is none.

    A `reset` has no key: all rows were removed. `optimistic` changes are local and not confirmed by the stream yet.
    `headers` are those of the event that made the change, if there is one.
    """

    collection: str
    operation: Literal["insert", "update", "delete", "reset"]
    key: str = ""
    value: T | None = None
    old_value: T | None = None
    optimistic: bool = False
    headers: ChangeHeaders | None = None


OnChange: TypeAlias = Callable[[StateChange[Any]], Any]
OnBatch: TypeAlias = Callable[[list[StateChange[Any]]], Any]


class StateTable(Mapping[str, T]):
    """A collection as a mapping that stays current. Only the stream and optimistic changes write to it.

    Events are staged first and become visible with `commit`, so that readers only see complete appends. Changes are
    recorded in `changes`; the database reports them when all tables are committed.
    """

    def __init__(
        self,
        name: str,
        definition: Collection[T],
        lock: contextlib.AbstractContextManager[Any],
        changes: list[StateChange[Any]],
    ) -> None:
        self.name = name
        self.definition = definition
        self.staged: dict[str, T | _Gone] = {}
        self.staged_texts: dict[str, Any] = {}
        self._lock = lock
        self._changes = changes
        self._rows: dict[str, T] = {}
        self.texts: dict[str, bytes] | None = None
        self._overlay: dict[str, list[tuple[object, T | _Gone]]] = {}
        self._indexes: dict[str, dict[Any, dict[str, None]]] = {field: {} for field in definition.indexes}
        self._watchers: list[OnChange] = []
        self._queries: weakref.WeakSet[Query[T]] = weakref.WeakSet()
        self._is_kept_current = bool(definition.indexes)  # whether indexes or queries need every change
        self.is_watched = False  # whether a watcher needs every change
        self.misfits: set[str] = set()  # keys whose newest value does not match the schema
        self.misfit_reason = ""

    # Reading

    def __getitem__(self, key: str) -> T:
        with self._lock:
            value = self._shown(key)
        if isinstance(value, _Gone):
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self._pairs()])

    def __len__(self) -> int:
        with self._lock:
            return len(self._rows) if not self._overlay else len(self._pairs())

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return isinstance(key, str) and not isinstance(self._shown(key), _Gone)

    def _shown(self, key: str) -> T | _Gone:
        changes = self._overlay.get(key)
        return changes[-1][1] if changes else self._rows.get(key, GONE)

    def _pairs(self) -> list[tuple[str, T]]:
        """A list of all visible keys and values, as of one moment."""
        with self._lock:
            if not self._overlay:
                return list(self._rows.items())
            merged: dict[str, T | _Gone] = {
                **self._rows,
                **{key: changes[-1][1] for key, changes in self._overlay.items()},
            }
        return [(key, value) for key, value in merged.items() if not isinstance(value, _Gone)]

    @property
    def unfit(self) -> frozenset[str]:
        """The keys whose newest value does not match the schema. They have an older value, or are missing."""
        with self._lock:
            return frozenset(self.misfits)

    def rows(self) -> dict[str, T]:
        """A copy of all rows, as of one moment."""
        return dict(self._pairs())

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """A copy of all rows as an Arrow table: `key`, and the fields of the schema with their types.

        If the schema does not say the fields, as a function or `dict`, the columns are `key` and `value`, as JSON text.
        Needs pyarrow (extra `sql`).
        """
        require_pyarrow()
        from headwater.state.columns import arrow_table

        return arrow_table(self.definition, self._pairs(), columns)

    def by(self, **fields: Any) -> dict[str, T]:
        """Return the rows whose fields equal these, through an index if there is one for any of them."""
        self.definition.check_fields(fields)
        with self._lock:
            keys = self._candidates(fields)
            pairs = self._pairs() if keys is None else [(key, self[key]) for key in keys]
        return {key: value for key, value in pairs if _matches(value, fields)}

    def _candidates(self, fields: Mapping[str, Any]) -> list[str] | None:
        for field, wanted in fields.items():
            if field in self._indexes:
                return list(self._indexes[field].get(_hashable(wanted), ()))
        return None

    def query(
        self,
        where: Callable[[T], Any] | None = None,
        *,
        order_by: str | Callable[[T], Any] | None = None,
        descending: bool = False,
        limit: int | None = None,
        **equal: Any,
    ) -> Query[T]:
        """Return a query for the rows that pass `where` and whose fields equal those given. It stays current."""
        self.definition.check_fields([*equal, *([order_by] if isinstance(order_by, str) else [])])
        key = _getter(order_by) if isinstance(order_by, str) else order_by
        with self._lock:

            def passes(value: T) -> bool:
                return _matches(value, equal) and (where is None or bool(where(value)))

            query = Query(passes, key, self._lock, descending=descending, limit=limit)
            query.fill(self.by(**equal) if equal else self.rows())
            self._queries.add(query)
            self._is_kept_current = True
        return query

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        """Call a function for every change, once everything that arrived with it is visible.

        Call the returned function to stop.
        """
        self._watchers.append(callback)
        self.watch()

        def end() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return end

    # Writing; only the database calls these

    def watch(self) -> None:
        """Record every change from now on."""
        self._is_kept_current = self.is_watched = True

    def keep_texts(self) -> None:
        """Keep the JSON of every row as it was in the stream, for checkpoints."""
        self.texts = {}

    def stage(self, key: str, value: T | _Gone, text: Any) -> None:
        """Stage a change, which becomes visible with the next commit."""
        self.staged[key] = value
        if self.texts is not None:
            self.staged_texts[key] = text

    def misfit(self, key: str, reason: str) -> None:
        """Note that the newest value of a key does not match the schema."""
        if not self.misfits:
            self.misfit_reason = reason
        self.misfits.add(key)

    def unstage(self) -> None:
        """Drop everything that is staged."""
        self.staged, self.staged_texts = {}, {}

    def commit(self) -> None:
        """Make everything staged visible."""
        staged, texts = self.staged, self.staged_texts
        self.unstage()
        if self._is_kept_current or self._overlay or self.texts is not None:
            for key, value in staged.items():
                self.put(key, value, texts.get(key))
            return
        rows = self._rows
        for key, value in staged.items():  # without watchers and indexes this takes a third of the time
            if value is GONE:
                rows.pop(key, None)
            else:
                rows[key] = value  # type: ignore[assignment]

    def replace(self) -> None:
        """Replace all rows by what is staged. Rows that stay the same are no changes."""
        staged, texts = self.staged, self.staged_texts
        self.unstage()
        for key in [key for key in self._rows if staged.get(key, GONE) is GONE]:
            self.put(key, GONE, None)
        for key, value in staged.items():
            if value is not GONE:
                self.put(key, value, texts.get(key))

    def put(self, key: str, value: T | _Gone, text: Any, headers: ChangeHeaders | None = None) -> None:
        """Set the value of a key in the state of the stream."""
        if self.texts is not None:
            if value is GONE:
                self.texts.pop(key, None)
            else:
                self.texts[key] = bytes(text)
        followed = self._is_kept_current or self._overlay
        before = self._shown(key) if followed else GONE
        if value is GONE:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value  # type: ignore[assignment]
        if followed:
            self._moved(key, before, optimistic=False, headers=headers)

    def confirmed(self) -> dict[str, T]:
        """The state of the stream, without optimistic changes."""
        return dict(self._rows)

    @property
    def confirmed_count(self) -> int:
        """The number of rows in the state of the stream, without optimistic changes."""
        return len(self._rows)

    def show_optimistic(self, transaction: object, key: str, value: T | _Gone) -> None:
        """Show an optimistic value until the transaction ends."""
        before = self._shown(key)
        self._overlay[key] = [*self._overlay.get(key, ()), (transaction, value)]
        self._moved(key, before, optimistic=True)

    def remove_optimistic(self, transaction: object) -> None:
        """Remove the optimistic values of a transaction, so that its keys show the state of the stream again."""
        changed = [key for key, all_changes in self._overlay.items() if any(c[0] is transaction for c in all_changes)]
        for key in changed:
            before = self._shown(key)
            left = [(owner, value) for owner, value in self._overlay[key] if owner is not transaction]
            if left:
                self._overlay[key] = left
            else:
                del self._overlay[key]
            self._moved(key, before, optimistic=bool(left))

    def reset(self, texts: Mapping[str, bytes] | None = None) -> None:
        """Replace all rows by others, given as JSON. Optimistic changes stay."""
        row = self.definition.row
        self._rows = {key: row(key, text) for key, text in (texts or {}).items()}
        self.misfits.clear()
        if self.texts is not None:
            self.texts = dict(texts or {})
        for index in self._indexes.values():
            index.clear()
        shown = self.rows()
        for key, value in shown.items():
            self._reindex(key, GONE, value)
        for query in self._queries:
            query.refill(shown)
        if self.is_watched:
            self._changes.append(StateChange(self.name, "reset"))
            self._changes += [StateChange(self.name, "insert", key, value) for key, value in shown.items()]

    def _moved(self, key: str, before: T | _Gone, *, optimistic: bool, headers: ChangeHeaders | None = None) -> None:
        now = self._shown(key)
        if now is before:
            return
        self._reindex(key, before, now)
        for query in self._queries:
            query.moved(key, None if isinstance(now, _Gone) else now, gone=isinstance(now, _Gone))
        if self.is_watched and now != before:
            self._changes.append(_change(self.name, key, before, now, optimistic, headers))

    def _reindex(self, key: str, before: T | _Gone, now: T | _Gone) -> None:
        for field, index in self._indexes.items():
            if not isinstance(before, _Gone):
                group = index.get(_hashable(_field(before, field)))
                if group is not None:
                    group.pop(key, None)
                    if not group:
                        del index[_hashable(_field(before, field))]
            if not isinstance(now, _Gone):
                index.setdefault(_hashable(_field(now, field)), {})[key] = None

    def tell(self, change: StateChange[Any]) -> None:
        """Call the watchers with a change."""
        for watcher in tuple(self._watchers):
            call_watcher(watcher, change)


def call_watcher(watcher: Callable[[Any], Any], news: Any) -> None:
    """Call a watcher. An exception in it is logged and does not stop the database."""
    try:
        watcher(news)
    except Exception:
        log.exception("a change callback failed")


def _change(
    name: str, key: str, before: Any, now: Any, optimistic: bool, headers: ChangeHeaders | None
) -> StateChange[Any]:
    if now is GONE:
        return StateChange(name, "delete", key, None, before, optimistic, headers)
    if before is GONE:
        return StateChange(name, "insert", key, now, None, optimistic, headers)
    return StateChange(name, "update", key, now, before, optimistic, headers)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _getter(name: str) -> Callable[[Any], Any]:
    return lambda value: _field(value, name)


def _matches(value: Any, fields: Mapping[str, Any]) -> bool:
    return all(_field(value, name) == wanted for name, wanted in fields.items())


def _hashable(value: Any) -> Any:
    """The index key of a value. All unhashable values share one key and are compared one by one."""
    try:
        hash(value)
    except TypeError:
        return _UNHASHABLE
    return value
