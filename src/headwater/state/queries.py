"""Queries whose results are kept current incrementally."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from headwater import limits

T = TypeVar("T")


class Query(Generic[T]):
    """The current result of a query. Make it with `query` of a collection.

    It is kept current as long as it is referenced.

    ```python
    users = Collection("user", dict, indexes=("team",))
    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("players")
        stream.create(messages=[users.insert({"id": "1", "team": "blue"}), users.insert({"id": "2", "team": "red"})])
        with StreamDB(stream, define_state({"users": users})) as db:
            db.preload()
            blue = db.users.query(team="blue", order_by="id")
            assert blue.keys() == ["1"]
    ```
    """

    def __init__(
        self,
        passes: Callable[[T], bool],
        order: Callable[[T], Any] | None,
        lock: contextlib.AbstractContextManager[Any],
        *,
        descending: bool,
        limit: int | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        self._passes = passes
        self._order = order
        self._lock = lock
        self._descending = descending
        self._limit = limit
        self._rows: dict[str, T] = {}
        self._ranks = Ranks(order, descending=descending) if order is not None else None
        self._failure: Exception | None = None

    def items(self) -> list[tuple[str, T]]:
        """Keys and values, ordered by `order_by` and key, or without it in the order in which they began to match."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._ranks is not None:
                return self._ranks.pairs(self._rows)[: self._limit]
            pairs = list(self._rows.items())
            if self._descending:
                pairs.reverse()
            return pairs[: self._limit]

    def values(self) -> list[T]:
        """The values, in order."""
        return [value for _, value in self.items()]

    def keys(self) -> list[str]:
        """The keys, in the order of their values."""
        return [key for key, _ in self.items()]

    def first(self) -> T | None:
        """The first value, or None."""
        return next(iter(self.values()), None)

    def count(self) -> int:
        """The number of matching rows, without the limit."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return iter(self.values())

    def __len__(self) -> int:
        return len(self.items())

    # Called by the table

    def fill(self, rows: Mapping[str, T]) -> None:
        """Evaluate all rows. Raises what the filter raises."""
        self._failure = None
        self._rows = {key: value for key, value in rows.items() if self._passes(value)}
        if self._ranks is not None:
            self._ranks.forget()

    def refill(self, rows: Mapping[str, T]) -> None:
        """The same, but an exception of the filter is raised at the next use of the query."""
        try:
            self.fill(rows)
        except Exception as error:  # noqa: BLE001  # the filter may raise anything
            self._failure = error

    def moved(self, key: str, value: T | None, *, gone: bool) -> None:
        """A row has changed or was deleted. An exception of the filter is raised at the next use of the query."""
        try:
            passes = not gone and self._passes(value)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # the error concerns the query, not the writer of the row
            self._failure = error
            return
        if passes:
            self._rows[key] = value  # type: ignore[assignment]
        elif key in self._rows:
            del self._rows[key]
        else:
            return
        if self._ranks is not None:
            self._ranks.moved(key)


class Ranks(Generic[T]):
    """The rows of a query in the order of their values, and by key among equals.

    Changes are only noted. The next read moves the rows that changed to their new places, or sorts all again if many
    changed. Only `<` of the order's values is used, as in a sort.
    """

    def __init__(self, order: Callable[[T], Any], *, descending: bool) -> None:
        self._order = order
        self._descending = descending
        self._ranks: list[Any] = []  # the order's values, in order
        self._pairs: list[tuple[str, T]] = []  # keys and values, in the same order
        self._rank_of: dict[str, Any] = {}
        self._moved: dict[str, None] = {}
        self._is_sorted = False

    def moved(self, key: str) -> None:
        """The value of a key has changed, or it does not match any more."""
        self._moved[key] = None

    def forget(self) -> None:
        """Sort all again at the next read."""
        self._is_sorted = False
        self._moved.clear()

    def pairs(self, rows: Mapping[str, T]) -> list[tuple[str, T]]:
        """Keys and values in order. Raises what the order raises, and at the next read again."""
        is_sorted, self._is_sorted = self._is_sorted, False
        few = len(self._moved) * limits.STATE_RANKS_MOVED_PART <= len(rows)
        if not is_sorted or not few or not all(self._move(key, rows) for key in self._moved):
            self._sort(rows)
        self._moved.clear()
        self._is_sorted = True
        return self._pairs

    def _sort(self, rows: Mapping[str, T]) -> None:
        rank_of = {key: self._order(value) for key, value in rows.items()}
        keys = sorted(rank_of)
        keys.sort(key=rank_of.__getitem__, reverse=self._descending)  # stable: equals stay ordered by key
        self._rank_of = rank_of
        self._ranks = [rank_of[key] for key in keys]
        self._pairs = [(key, rows[key]) for key in keys]

    def _move(self, key: str, rows: Mapping[str, T]) -> bool:
        """Move a row to its place. False if its old place is not found, because `<` contradicts itself (NaN)."""
        if key in self._rank_of:
            place = self._place(self._rank_of.pop(key), key)
            if place >= len(self._pairs) or self._pairs[place][0] != key:
                return False
            del self._ranks[place], self._pairs[place]
        if key in rows:
            rank = self._rank_of[key] = self._order(rows[key])
            place = self._place(rank, key)
            self._ranks.insert(place, rank)
            self._pairs.insert(place, (key, rows[key]))
        return True

    def _place(self, rank: Any, key: str) -> int:
        """The number of rows before this one, by binary search."""
        low, high = 0, len(self._ranks)
        while low < high:
            middle = (low + high) // 2
            other = self._ranks[middle]
            first, second = (rank, other) if self._descending else (other, rank)
            if first < second or (not second < first and self._pairs[middle][0] < key):
                low = middle + 1
            else:
                high = middle
        return low
